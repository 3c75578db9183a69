from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from autodiff.numeric import worst_error
from engines import native
from plain_session import PlainSession

TOLERANCE = 1e-6  # central differences of step 1e-6 in float64


def parsed(text, opset=21):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def rng(seed=0):
    return np.random.default_rng(seed)


# operator, attributes, x, indices: each with an index that comes twice and one that is negative
READS = [
    ("Gather", "", (4, 3), [1, -4, 1]),
    ("Gather", "", (4, 3), 2),
    ("Gather", "", (4, 3), [[1, 0], [1, -1]]),
    ("Gather", "<axis=1>", (2, 4, 3), [1, -4, 1]),
    ("Gather", "<axis=1>", (2, 4, 3), -1),
    ("Gather", "<axis=-1>", (2, 3, 4), [[1, 0], [1, -1]]),
    ("Gather", "", (4,), [[1, 0], [1, -1]]),
    ("GatherElements", "", (4, 3), [[1, -4, 1], [1, 2, 2]]),
    ("GatherElements", "<axis=1>", (2, 3), [[1, -3, 1, 0], [2, 2, 0, -1]]),
    ("GatherND", "", (4, 3), [[1], [0], [1]]),
    ("GatherND", "", (4, 3), [[1, 2], [0, -1], [1, 2]]),
    ("GatherND", "<batch_dims=1>", (2, 4, 3), [[[1], [1]], [[0], [-1]]]),
]


def dims(shape, named):
    return ",".join(f"N{i}" if named else str(d) for i, d in enumerate(shape))


@pytest.mark.parametrize("opset", [13, 16, 21])
@pytest.mark.parametrize("named", [False, True], ids=["sizes", "names"])
@pytest.mark.parametrize(("op", "attributes", "shape", "indices"), READS)
def test_what_was_read_twice_gets_both_gradients(op, attributes, shape, indices, named, opset):
    indices = np.array(indices, np.int64)
    at = f"int64[{dims(indices.shape, named).replace('N', 'M')}] i" if indices.ndim else "int64 i"
    text = f"g (float[{dims(shape, named)}] x, {at}) => (y) {{ y = {op}{attributes}(x, i) }}"
    model = onnx.shape_inference.infer_shapes(parsed(text, opset))
    assert worst_error(model, {"x": rng().normal(size=shape), "i": indices}) < TOLERANCE


@pytest.mark.parametrize("opset", [13, 16, 21])
def test_onnxruntime_adds_up_a_row_that_is_read_by_every_thread(opset):
    """ScatterND adds in several threads at once and loses updates (onnxruntime 1.19): the rules don't use it."""
    rows, size = 4000, 64
    text = """g (float[4,64] x, int64[N] i) => (float loss) <int64[1] axes = {1}>
     { at = Unsqueeze(i, axes) y = Gather(x, i) z = GatherND(x, at) both = Add(y, z)
       loss = ReduceSum<keepdims=0>(both) }"""
    derived, names = native(parsed(text, opset), "loss", [], ["x"])
    feeds = {"x": np.ones((4, size), np.float32), "i": np.full(rows, 2, np.int64)}
    [got] = PlainSession(derived).run(feeds, [names["x"]])
    expected = np.zeros((4, size))
    expected[2] = 2 * rows
    np.testing.assert_array_equal(got, expected)


WRITES = {
    "ScatterElements": ([[1, 0, 1], [1, 2, 2]], (2, 3), (4, 3)),
    "ScatterND": ([[1], [0], [1]], (3, 3), (4, 3)),
}


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("op", WRITES)
def test_a_place_written_twice_shares_as_the_reduction_says(op, reduction):
    indices, updates, shape = WRITES[op]
    indices = np.array(indices, np.int64)
    text = f"""g (float[{dims(shape, False)}] x, float[{dims(updates, False)}] u, int64[{dims(indices.shape, False)}] i)
     => (float[4,3] y) {{ y = {op}<reduction="{reduction}">(x, i, u) }}"""
    feeds = {"x": rng().normal(size=shape), "u": rng(1).normal(size=updates), "i": indices}
    assert worst_error(parsed(text), feeds) < TOLERANCE


@pytest.mark.parametrize("zeros", ["x", "u", "both"])
@pytest.mark.parametrize("op", WRITES)
def test_a_product_with_a_zero_still_moves_by_it(op, zeros):
    indices, updates, shape = WRITES[op]
    indices = np.array(indices, np.int64)
    text = f"""g (float[4,3] x, float[{dims(updates, False)}] u, int64[{dims(indices.shape, False)}] i)
     => (float[4,3] y) {{ y = {op}<reduction="mul">(x, i, u) }}"""
    feeds = {"x": rng().normal(size=shape), "u": rng(1).normal(size=updates), "i": indices}
    if zeros in ("x", "both"):
        feeds["x"][1] = 0
    if zeros in ("u", "both"):
        feeds["u"][0] = 0
    assert worst_error(parsed(text), feeds) < TOLERANCE


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_cumulative_sum_goes_back_the_other_way(exclusive, reverse):
    text = f"""g (float[N,3] x, int64 axis) => (float[N,3] y)
     {{ y = CumSum<exclusive={exclusive}, reverse={reverse}>(x, axis) }}"""
    for axis in (0, 1, -1):
        assert worst_error(parsed(text), {"x": rng().normal(size=(4, 3)), "axis": np.array(axis)}) < TOLERANCE


def dropped(nodes, inputs=""):
    outputs = "float[N,50] y, float loss"
    return parsed(f"g (float[N,50] x{inputs}) => ({outputs}) {{ {nodes} loss = ReduceSum<keepdims=0>(y) }}")


TRAINING = "on = Constant<value=bool {1}>() ratio = Constant<value_float=0.4>()"


@pytest.mark.parametrize("seed", ["", "<seed=3>"], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("mask", ["", ", m"], ids=["mask not declared", "mask declared"])
def test_dropout_sends_back_through_the_mask_that_was_drawn(seed, mask):
    derived, names = native(dropped(f"{TRAINING} y{mask} = Dropout{seed}(x, ratio, on)"), "loss", [], ["x"])
    assert [n.op_type for n in derived.graph.node].count("Dropout") == 1
    y, dx = PlainSession(derived).run({"x": np.ones((8, 50), np.float32)}, ["y", names["x"]])
    assert 0 < (y == 0).mean() < 1
    np.testing.assert_allclose(dx, y, rtol=1e-6)


def test_dropout_without_a_ratio_drops_half():
    """ONNX's default ratio is 0.5, so that a value that stays is doubled."""
    nodes = "on = Constant<value=bool {1}>() y = Dropout(x, , on)"
    derived, names = native(dropped(nodes), "loss", [], ["x"])
    y, dx = PlainSession(derived).run({"x": np.ones((8, 50), np.float32)}, ["y", names["x"]])
    assert set(np.unique(dx)) == {0, 2}
    np.testing.assert_array_equal(dx, y)


def test_dropout_outside_training_is_the_identity():
    off = TRAINING.replace("{1}", "{0}")
    for nodes in ("y = Dropout(x)", f"{off} y = Dropout(x, ratio, on)"):
        derived, names = native(dropped(nodes), "loss", [], ["x"])
        [dx] = PlainSession(derived).run({"x": np.ones((2, 50), np.float32)}, [names["x"]])
        np.testing.assert_array_equal(dx, np.ones((2, 50)))


def test_dropout_asks_at_run_time_whether_it_trains():
    nodes = "ratio = Constant<value_float=0.4>() y = Dropout(x, ratio, on)"
    derived, names = native(dropped(nodes, ", bool on"), "loss", [], ["x"])
    for on in (True, False):
        y, dx = PlainSession(derived).run({"x": np.ones((8, 50), np.float32), "on": np.array(on)}, ["y", names["x"]])
        assert (y == 0).any() == on
        np.testing.assert_allclose(dx, y, rtol=1e-6)


def test_two_dropouts_of_one_value_draw_two_masks():
    nodes = f"{TRAINING} a = Dropout(x, ratio, on) b = Dropout(x, ratio, on) y = Sub(a, b)"
    derived, names = native(dropped(nodes), "loss", [], ["x"])
    assert [n.op_type for n in derived.graph.node].count("Dropout") == 2
    y, dx = PlainSession(derived).run({"x": np.ones((8, 50), np.float32)}, ["y", names["x"]])
    assert y.any()
    np.testing.assert_allclose(dx, y, atol=1e-6)


@pytest.mark.parametrize("opset", [14, 21])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-1, 0, 2])
def test_a_triangle_sends_back_a_triangle(k, upper, opset):
    text = f"g (float[N,3,4] x, int64 k) => (float[N,3,4] y) {{ y = Trilu<upper={upper}>(x, k) }}"
    assert worst_error(parsed(text, opset), {"x": rng().normal(size=(2, 3, 4)), "k": np.array(k)}) < TOLERANCE


@pytest.mark.parametrize("named", [False, True], ids=["sizes", "names"])
@pytest.mark.parametrize("attributes", ["", "<axis=1>", "<axis=-2>"])
def test_unique_sends_its_gradient_to_the_first_of_equal_values(attributes, named):
    """JAX's choice: `jax.grad(lambda x: (jnp.unique(x) ** 3).sum())`."""
    shape = (3, 4)
    model = onnx.shape_inference.infer_shapes(
        parsed(f"g (float[{dims(shape, named)}] x) => (y) {{ y, places, back = Unique{attributes}(x) }}")
    )
    assert worst_error(model, {"x": rng().normal(size=shape)}) < TOLERANCE
    text = """g (float[N] x) => (float loss)
     { u = Unique<sorted=0>(x) three = Constant<value_float=3.0>() p = Pow(u, three)
       loss = ReduceSum<keepdims=0>(p) }"""
    result, names = native(onnx.shape_inference.infer_shapes(parsed(text)), "loss", [], ["x"])
    gradient = PlainSession(result).run({"x": np.array([2, 1, 2, 3, 1], np.float32)}, [names["x"]])[0]
    np.testing.assert_allclose(gradient, [12, 3, 0, 27, 0], rtol=1e-6)
