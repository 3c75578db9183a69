"""Forms that operators take in networks give the results of onnxruntime, over steps whose rows differ."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from runtime.c.epochs import needs_engine

from ortpipe.errors import EngineError
from ortpipe.runtime.c import CompiledEpoch, emit
from ortpipe.runtime.c.plan import packed

pytestmark = needs_engine
RNG = np.random.default_rng(0)
STEPS = 3


def epoch(body, states, rows, **weights):
    """Return the epoch graph of a body in ONNX's text, whose inputs are states, then rows."""
    header = '<ir_version: 10, opset_import: ["": 18]> step '
    model = onnx.parser.parse_model(header + body)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    kinds = [value.type.tensor_type.elem_type for value in model.graph.input]
    shapes = [*(x.shape for x in states), *(("steps", *x.shape[1:]) for x in rows)]
    inputs = [helper.make_tensor_value_info(f"x{i}", k, s) for i, (k, s) in enumerate(zip(kinds, shapes, strict=True))]
    kinds = [value.type.tensor_type.elem_type for value in model.graph.output]
    ends = [helper.make_tensor_value_info(f"y{i}", kind, None) for i, kind in enumerate(kinds)]
    names = [[value.name for value in values] for values in (inputs, ends)]
    scan = helper.make_node("Scan", *names, body=model.graph, num_scan_inputs=len(rows))
    graph = helper.make_graph([scan], "epoch", inputs, ends)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)


def results(body, rows, states=(), engine="c", **weights):
    """Return the outputs of all steps from C or onnxruntime."""
    model = epoch(body, states, rows, **weights)
    feeds = {f"x{i}": array for i, array in enumerate([*states, *rows])}
    if engine == "c":
        return CompiledEpoch(model, {}).run(feeds)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def compare(body, rows, states=(), **weights):
    """Compare the results of C with those of onnxruntime."""
    one, two = (results(body, rows, states, engine, **weights) for engine in ("c", "onnxruntime"))
    for ours, theirs in zip(one, two, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def floats(*shape):
    """Return random numbers for each step."""
    return RNG.normal(size=(STEPS, *shape)).astype(np.float32)


def test_a_joined_next_state_is_written_after_its_state_was_read():
    body = """(float[4] s, float[2] x) => (float[4] t, float[2] y)
    <int64[1] zero = {0}, int64[1] two = {2}> { d = Add(x, x) r = Slice(s, zero, two) t = Concat<axis=0>(d, r)
    y = Identity(r) }"""
    compare(body, [floats(2)], [np.arange(4, dtype=np.float32)])


def test_a_delay_line_inside_a_step_keeps_its_order():
    body = """(float[5,1] x) => (float[3] last, float[5,1] y) { z = Constant<value = float[3] {0, 0, 0}>()
    last, y = Scan<num_scan_inputs=1, body = inner (float[3] s, float[1] v) => (float[3] t, float[1] u)
      <int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}>
      { d = Add(v, v) r = Slice(s, zero, two) t = Concat<axis=0>(d, r) u = Slice(t, two, three) }>(z, x) }"""
    compare(body, [floats(5, 1)])


def test_matrices_of_other_sizes_are_rejected():
    for equation, one, two in [("ij,jk->ik", (3, 1), (4, 5)), ("bij,bjk->bik", (1, 3, 4), (2, 4, 5))]:
        shapes = [",".join(map(str, shape)) for shape in (one, two)]
        head = f"(float[{shapes[0]}] a, float[{shapes[1]}] b) => (float[N] y) "
        with pytest.raises(EngineError, match="two sizes of one label"):
            results(f'{head} {{ y = Einsum<equation="{equation}">(a, b) }}', [floats(*one), floats(*two)])
    with pytest.raises(EngineError, match="1 columns and 4 rows"):
        results("(float[3,1] a, float[4,5] b) => (float[N] y) { y = MatMul(a, b) }", [floats(3, 1), floats(4, 5)])


@pytest.mark.parametrize(("rows", "width"), [(2, 4), (2, 8), (4, 3), (4, 6), (6, 4)])
def test_a_normalization_alone_is_finite_in_every_step(rows, width):
    body = f"(float[{rows},{width}] x) => (float[{rows},{width}] y) {{ y = LayerNormalization(x, s, b) }}"
    scale = RNG.normal(size=width).astype(np.float32)
    body = body.replace(" { y", f" <float[{width}] s, float[{width}] b> {{ y")
    compare(body, [floats(rows, width)], s=scale, b=2 * scale)


INDICES = {
    "integers": "m = Gather(map, i) y = Gather(x, m)",
    "numbers": "y = Gather(x, i)",
    "elements": "y = GatherElements(x, i)",
    "updates": "y = ScatterElements(x, i, x2)",
}


@pytest.mark.parametrize("case", INDICES)
def test_an_index_out_of_bounds_makes_this_and_later_outputs_nan(case):
    nodes = INDICES[case]
    body = f"(float[3] x, float[2] x2, int64[2] i) => (float[N] y) <int64[3] map = {{2, 0, 1}}> {{ {nodes} }}"
    rows, indices = [floats(3), floats(2)], np.array([[0, -3], [2, 7], [0, 1]])
    [y] = results(body, [*rows, indices])
    [right] = results(body, [*rows, indices % 3], engine="onnxruntime")
    np.testing.assert_array_equal(y[0], right[0])
    assert np.isnan(y[1:]).all()


SMALL = {
    "not": ("uint8", "n = BitwiseNot(x) y = Cast<to=1>(n)", [1, 0, 255]),
    "abs": ("int8", "n = Abs(x) y = Cast<to=1>(n)", [-128, -1, 127]),
    "neg": ("int8", "n = Neg(x) y = Cast<to=1>(n)", [-128, -1, 127]),
    "mod": (
        "uint32",
        "c = Constant<value_ints=[1, 0, 2]>() d = Gather(x, c) n = Mod(x, d) y = Cast<to=1>(n)",
        [3e9, 4e9, 7],
    ),
    "signed mod": ("int64", "c = Constant<value_int=-7>() n = Mod(x, c) y = Cast<to=1>(n)", [9, -9, 14]),
    "sign": ("float", "y = Sign(x)", [np.nan, -2, 0]),
    "power": ("float", "c = Constant<value=float[1,1] {2}>() y = Pow(x, c)", [1, -2, 3]),
    "root": ("float", "c = Constant<value=float[1] {0.5}>() y = Pow(x, c)", [-np.inf, 4, 9]),
    "zeros": ("float", "c = Constant<value=float[3] {0, -0.0, 0}>() y = Div(x, c)", [1, 1, 1]),
}


@pytest.mark.parametrize("case", SMALL)
def test_small_integers_wrap_and_edges_are_those_of_onnxruntime(case):
    kind, nodes, numbers = SMALL[case]
    x = np.array([numbers] * STEPS, {"float": "float32"}.get(kind, kind))
    with np.errstate(all="ignore"):
        compare(f"({kind}[3] x) => (float[N] y) {{ {nodes} }}", [x])


def test_the_largest_integer_along_any_axis():
    x = RNG.integers(-9, 9, (STEPS, 4, 3, 2))
    for operator in ("ReduceMax", "ReduceMin"):
        body = f"(int64[4,3,2] x) => (int64[4,2] y) <int64[1] axis = {{1}}> {{ y = {operator}<keepdims=0>(x, axis) }}"
        compare(body, [x])


def test_a_state_of_one_number_stays_a_number():
    body = "(float s, float x) => (float t, float y) { t = Add(s, x) y = Identity(s) }"
    compare(body, [floats()], [np.array(2, np.float32)])


def test_large_negative_constants_have_parentheses():
    body = "(int64[1] x) => (int64[300,300] y) { n = Neg(c) y = Add(n, x) }".replace(") {", ") <int64[300,300] c> {")
    compare(body, [np.ones((STEPS, 1), np.int64)], c=np.full((300, 300), -5))


@pytest.mark.parametrize("sizes", [(1500, 50, 33), (33, 1500, 50), (1500, 33, 50), (40, 1, 30), (1, 40, 3)])
def test_products_of_all_shapes_and_transposes(sizes):
    m, k, n = sizes
    a, b = floats(m, k), floats(k, n)
    for turned in ((0, 0), (1, 0), (0, 1), (1, 1)):
        one, two = (np.swapaxes(x, 1, 2).copy() if turn else x for x, turn in zip((a, b), turned, strict=True))
        shapes = [",".join(map(str, x.shape[1:])) for x in (one, two)]
        body = f"(float[{shapes[0]}] a, float[{shapes[1]}] b) => (float[{m},{n}] y) "
        [y] = results(f"{body} {{ y = Gemm<transA={turned[0]}, transB={turned[1]}>(a, b) }}", [one, two])
        np.testing.assert_allclose(y, a.astype(float) @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("operator", ["Exp", "Log", "Tanh", "Erf", "Elu", "Softplus"])
def test_functions_of_many_numbers_have_all_their_digits_at_the_edges_too(operator):
    edges = np.array([0, -0.0, 1e-30, 90, -90, np.inf, -np.inf], np.float32)
    x = np.concatenate([np.geomspace(1e-6, 80, 500), -np.geomspace(1e-6, 80, 500), edges]).astype(np.float32)
    compare(f"(float[{x.size}] x) => (float[{x.size}] y) {{ y = {operator}(x) }}", [np.stack([x] * STEPS)])


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize("kind", ["int32", "int64", "uint8"])
def test_an_integer_divided_by_zero_makes_this_and_no_earlier_output_nan(operator, kind):
    body = f"({kind}[2] x, {kind}[2] d, float[2] z) => ({kind}[N] n, float[N] y) {{ n = {operator}(x, d) y = Neg(z) }}"
    x, d = np.full((STEPS, 2), 7, kind), np.array([[2, 3], [0, 1], [1, 1]], kind)
    n, y = results(body, [x, d, floats(2)])
    np.testing.assert_array_equal(n[0], [7 // 2, 7 // 3] if operator == "Div" else [1, 1])
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1:]).all()


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_the_least_integer_divided_by_minus_one_wraps(kind):
    x, d = np.full((STEPS, 1), np.iinfo(kind).min, kind), np.full((STEPS, 1), -1, kind)
    body = f"({kind}[1] x, {kind}[1] d) => ({kind}[1] q, {kind}[1] r) {{ q = Div(x, d) r = Mod(x, d) }}"
    q, r = results(body, [x, d])
    np.testing.assert_array_equal(q, x)
    np.testing.assert_array_equal(r, 0 * x)


@pytest.mark.parametrize("operator", ["MatMul", "Add"])
def test_sizes_that_do_not_broadcast_are_rejected_by_name(operator):
    body = f"(float[2,3,3] a, float[4,3,3] b) => (float[N] y) {{ y = {operator}(a, b) }}"
    with pytest.raises(EngineError, match=rf"{operator} 'y': sizes that do not broadcast: \[2.*\] and \[4.*\]"):
        results(body, [floats(2, 3, 3), floats(4, 3, 3)])


REVERSED = "int64[1] minus = {-1}, int64[1] low = {-9}, int64[1] zero = {0}"


@pytest.mark.parametrize("other", ["z = MatMul(a, w)", "l = Flatten<axis=0>(a) z = Sub(l, v)"])
def test_a_product_with_a_view_of_a_view_that_others_read(other):
    body = f"""(float[4,6] x, float[6,3] w, float[1,24] v) => (float[4,3] y, float[N,M] z) <{REVERSED}>
    {{ a = Slice(x, minus, low, zero, minus) b = Slice(a, minus, low, zero, minus) y = MatMul(b, w) {other} }}"""
    compare(body, [floats(4, 6), floats(6, 3), floats(1, 24)])


INNER = """Scan<num_scan_inputs=1, body = two (float[2] s, float[3,2] r) => (float[2] t, float[3,2] o) {
  t, o = Scan<num_scan_inputs=1, body = three (float[2] u, float[2] v) => (float[2] k, float[2] p) {
    k = Add(u, v) e = Mul(k, k) p = Neg(e) }>(s, r) }>"""
CHOSEN = """Scan<num_scan_inputs=2, body = two (float[2] s, float[3] r, int64[2] i) => (float[2] t, float[2] o) {
  g = Gather(r, i) t = Add(s, g) o = Mul(t, g) }>"""


def test_loops_in_loops_read_an_array_until_the_last_of_them_ends():
    head, zeros = "(float[4,3,2] x, float[4,3,2] w)", "zeros = Constant<value = float[2] {0, 0}>()"
    body = f"{head} => (float[4,3,2] y) {{ {zeros} a = Exp(x) l, b = {INNER}(zeros, a) c = Tanh(w) y = Add(b, c) }}"
    compare(body, [floats(4, 3, 2), floats(4, 3, 2)])
    body = f"(float[4,3,2] z, float[4,3,2] x) => (float[4,3,2] n, float[4,3,2] y) {{ {zeros} n = Add(z, x) l, y = "
    compare(f"{body} {INNER}(zeros, z) }}", [floats(4, 3, 2)], [floats(4, 3, 2)[0]])


def test_a_state_that_the_rows_of_a_loop_are_chosen_from_is_not_overwritten_before():
    body = f"""(float[4,3] s, float[4,3] x, int64[4,2] i) => (float[4,3] n, float[4,2] y) {{
    zeros = Constant<value = float[2] {{0, 0}}>() n = Add(s, x) l, y = {CHOSEN}(zeros, s, i) }}"""
    compare(body, [floats(4, 3), RNG.integers(0, 3, (STEPS, 4, 2))], [floats(4, 3)[0]])


@pytest.mark.parametrize("kind", ["float", "double", "int64"])
def test_an_identity_matrix_has_the_type_of_its_input(kind):
    body = f"({kind}[3,3] x) => ({kind}[3,3] y) {{ e = EyeLike(x) two = Add(e, e) y = Mul(two, x) }}"
    compare(body, [(9 * floats(3, 3)).astype({"float": "float32"}.get(kind, kind))])


def test_constants_of_any_form_are_computed_as_by_onnxruntime():
    body = """(float[4] x) => (float[4] y) <float[3] c = {500, -100, 7}, int64[2] ends = {-1, 2},
    int8[4] q = {-1, 5, 6, 7}, float scale = {0.5}, int8 zero = {2}> { l = LogSoftmax(c) p = Pad(l, ends)
    d = DequantizeLinear<axis=0>(q, scale, zero) s = Add(p, d) y = Add(s, x) }"""
    compare(body, [floats(4)])


def test_a_repeated_constant_is_in_memory_once():
    body = (
        "(float[64,32] x) => (float[64,32] y) <int64[2] n = {64, 32}, float[1,32] c> { e = Expand(c, n) y = Add(e, x) }"
    )
    rows, c = floats(64, 32), floats(32)[:1]
    compare(body, [rows], c=c)
    assert not emit(epoch(body, [], [rows], c=c), {}, {"x0": (64, 32)}).constants


def test_the_largest_arrays_get_a_place_first():
    assert packed([(64, 0, 1), (128, 1, 2), (192, 2, 3)], 64) == ([64, 256, 64], 384)  # 448 in the order of their use


@pytest.mark.parametrize(("state", "following"), [((6, 1), (1, 6)), ((2, 3), (6,)), ((1, 6, 1), (3, 2))])
def test_a_next_state_in_another_shape_is_copied_after_the_state_was_read(state, following):
    one, two = (",".join(map(str, shape)) for shape in (state, following))
    body = f"(float[{one}] s, float[{two}] x) => (float[{one}] t, float[{two}] v, float y) <int64[{len(state)}] n, "
    body += "int64[1] all = {-1}> { u = Tanh(x) t = Reshape(u, n) v = Neg(u) f = Reshape(s, all) y = MatMul(f, f) }"
    compare(body, [floats(*following)], [floats(*state)[0]], n=np.array(state))
