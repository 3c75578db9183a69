"""Gradients are summed back over what was broadcast, whatever the shapes are and however much is known of them."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.parser
import pytest
from autodiff.numeric import worst_error
from engines import native
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from plain_session import PlainSession
from sample import pairs

import ortpipe

TOLERANCE = 1e-6  # central differences of step 1e-6 in float64, losses up to some 100
EXAMPLES = settings(max_examples=10, deadline=None, derandomize=True, database=None)
SIZES = st.integers(1, 3)
BINARY = ("Add", "Div", "Max", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
MANY = ("Max", "Mean", "Min", "Sum")


@st.composite
def broadcastable(draw, count, *, one_way=False):
    """Draw shapes that broadcast together (with `one_way`, all others to the first)."""
    full = draw(st.lists(SIZES, max_size=3))
    shapes = []
    for i in range(count):
        rank = len(full) if one_way and i == 0 else draw(st.integers(0, len(full)))
        dims = full[len(full) - rank :]
        shapes.append([d if (one_way and i == 0) or draw(st.booleans()) else 1 for d in dims])
    return shapes


@st.composite
def declared(draw, shapes):
    """Draw what a model says of its inputs' shapes: numbers, names (equal only where sizes are), or nothing."""
    named = []
    for shape in shapes:
        dims = [draw(st.sampled_from([d, f"size{d}", f"x{len(named)}{a}", None])) for a, d in enumerate(shape)]
        named.append(dims)
    return named


def values(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.5, 2.0, shape) for shape in shapes]


def model_of(nodes, inputs, dims, output="y", rank=None):
    given = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, d) for n, d in zip(inputs, dims, strict=True)]
    out = helper.make_tensor_value_info(output, TensorProto.DOUBLE, rank)
    graph = helper.make_graph(nodes, "g", given, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def check(op_type, shapes, dims, **attributes):
    names = [f"x{i}" for i in range(len(shapes))]
    model = model_of([helper.make_node(op_type, names, ["y"], **attributes)], names, dims)
    assert worst_error(model, dict(zip(names, values(shapes), strict=True))) < TOLERANCE


def summed(op_type, shapes, dims, **attributes):
    """Run Σ y, whose gradient reaches the operator as one scalar, and compare with Σ 1 · y."""
    names = [f"x{i}" for i in range(len(shapes))]
    feeds = dict(zip(names, values(shapes), strict=True))
    node = helper.make_node(op_type, names, ["y"], **attributes)
    total = helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)
    model = model_of([node, total], names, dims, "loss", [])
    derived, gradients = native(model, "loss", [], names)
    got = PlainSession(derived).run(feeds, [gradients[n] for n in names])
    for name, gradient in zip(names, got, strict=True):
        assert gradient.shape == feeds[name].shape
        moved = np.array(feeds[name])
        expected = np.zeros(moved.shape)
        session = PlainSession(model)
        for place in np.ndindex(moved.shape):
            ends = []
            for sign in (1, -1):
                moved[place] = feeds[name][place] + sign * 1e-6
                ends.append(session.run({**feeds, name: moved})[0])
            moved[place] = feeds[name][place]
            expected[place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op_type", BINARY)
@EXAMPLES
@given(data=st.data())
def test_a_binary_operator_sums_back_what_it_broadcast(op_type, data):
    shapes = data.draw(broadcastable(2, one_way=op_type == "PRelu"))
    check(op_type, shapes, data.draw(declared(shapes)), **({"fmod": 1} if op_type == "Mod" else {}))


@pytest.mark.parametrize("op_type", MANY)
@EXAMPLES
@given(data=st.data())
def test_an_operator_of_many_inputs_sums_back_what_it_broadcast(op_type, data):
    # onnx.reference's Mean adds into its first input, which must have the whole shape
    shapes = data.draw(st.integers(1, 4).flatmap(lambda n: broadcastable(n, one_way=op_type == "Mean")))
    check(op_type, shapes, data.draw(declared(shapes)))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Sum", "Mul", "Div"])
@EXAMPLES
@given(data=st.data())
def test_a_gradient_that_is_still_a_scalar_counts_every_place_it_stands_for(op_type, data):
    shapes = data.draw(broadcastable(2))
    summed(op_type, shapes, data.draw(declared(shapes)))


@EXAMPLES
@given(data=st.data())
def test_where_sums_back_what_it_broadcast(data):
    shapes = data.draw(broadcastable(3))
    dims = data.draw(declared(shapes))
    names = ["c", "a", "b"]
    nodes = [
        helper.make_node("Constant", [], ["middle"], value_float=1.2),
        helper.make_node("CastLike", ["middle", "c"], ["wide"]),
        helper.make_node("Greater", ["c", "wide"], ["chosen"]),
        helper.make_node("Where", ["chosen", "a", "b"], ["y"]),
    ]
    feeds = dict(zip(names, values(shapes), strict=True))
    assert worst_error(model_of(nodes, names, dims), feeds) < TOLERANCE
    total = helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)
    derived, gradients = native(model_of([*nodes, total], names, dims, "loss", []), "loss", [], ["a", "b"])
    da, db = PlainSession(derived).run(feeds, [gradients["a"], gradients["b"]])
    assert (da.shape, db.shape) == (feeds["a"].shape, feeds["b"].shape)
    full = np.broadcast_shapes(*shapes)
    assert da.sum() + db.sum() == int(np.prod(full))


@EXAMPLES
@given(data=st.data())
def test_expand_sums_back_what_it_broadcast(data):
    shapes = data.draw(broadcastable(2))
    [dims] = data.draw(declared(shapes[:1]))
    known = data.draw(st.booleans())
    model = model_of([helper.make_node("Expand", ["x", "to"], ["y"])], ["x"], [dims])
    to = np.array(shapes[1], np.int64)
    feeds = {"x": values(shapes[:1])[0]}
    if known:
        model.graph.initializer.append(onnx.numpy_helper.from_array(to, "to"))
    else:
        model.graph.input.append(helper.make_tensor_value_info("to", TensorProto.INT64, [len(to)]))
        feeds["to"] = to
    assert worst_error(model, feeds) < TOLERANCE


@st.composite
def factors(draw):
    """Draw two shapes of ranks 1 to 4 that MatMul takes."""
    n, k, m = draw(SIZES), draw(SIZES), draw(SIZES)
    a, b = draw(broadcastable(2))
    ranks = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    left = [k] if ranks[0] == 1 else [*a[: ranks[0] - 2], n, k]
    right = [k] if ranks[1] == 1 else [*b[: ranks[1] - 2], k, m]
    width = min(len(left), len(right)) - 2
    for i in range(1, width + 1):  # cutting from the front may have set different sizes beside each other
        if left[-2 - i] != right[-2 - i] and 1 not in (left[-2 - i], right[-2 - i]):
            left[-2 - i] = 1
    return [left, right]


@settings(EXAMPLES, max_examples=30)
@given(data=st.data())
def test_a_matrix_product_of_any_ranks_sums_back_its_batch_axes(data):
    shapes = data.draw(factors())
    check("MatMul", shapes, data.draw(declared(shapes)))
    summed("MatMul", shapes, data.draw(declared(shapes)))


@settings(EXAMPLES, max_examples=30)
@given(data=st.data())
def test_gemm_sums_back_every_form_of_bias(data):
    n, k, m = (data.draw(SIZES) for _ in range(3))
    turned = {"transA": data.draw(st.integers(0, 1)), "transB": data.draw(st.integers(0, 1))}
    bias = data.draw(st.sampled_from([None, [], [1], [m], [1, 1], [1, m], [n, 1], [n, m]]))
    shapes = [[k, n] if turned["transA"] else [n, k], [m, k] if turned["transB"] else [k, m]]
    shapes += [bias] if bias is not None else []
    scale = {"alpha": data.draw(st.sampled_from([1.0, 0.5])), "beta": data.draw(st.sampled_from([1.0, 0.25]))}
    check("Gemm", shapes, data.draw(declared(shapes)), **turned, **scale)


EQUATIONS = {
    "ij->ji": [[2, 3]],
    "ij->i": [[2, 3]],
    "ij->": [[2, 3]],
    "ii->i": [[3, 3]],
    "ii": [[3, 3]],
    "iij->ji": [[2, 2, 3]],
    "ij,jk->ik": [[2, 3], [3, 2]],
    "ij,jk": [[2, 3], [3, 2]],
    "i,i->": [[3], [3]],
    "i,j->ij": [[2], [3]],
    "ij,ij->j": [[2, 3], [2, 3]],
    "ij,kl->jk": [[2, 3], [2, 2]],
    "bij,bjk->bik": [[2, 2, 3], [2, 3, 2]],
    "bhqd,bhkd->bhqk": [[2, 1, 2, 3], [2, 1, 3, 3]],
    "ij,jk,kl->il": [[2, 3], [3, 2], [2, 2]],
    "ii,ij->j": [[3, 3], [3, 2]],
    "...ij->...ji": [[2, 2, 3]],
    "...ij,...jk->...ik": [[2, 2, 3], [2, 3, 2]],
    "...ij,jk->...ik": [[2, 2, 3], [3, 2]],
    "...ij,...jk": [[1, 2, 3], [2, 3, 2]],
    "...i,...i->...": [[2, 1, 3], [2, 2, 3]],
    " i j , j k -> i k ": [[2, 3], [3, 2]],
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_gives_every_input_its_share(equation):
    shapes = EQUATIONS[equation]
    check("Einsum", shapes, shapes, equation=equation)
    check("Einsum", shapes, [[f"x{i}{a}" for a in range(len(s))] for i, s in enumerate(shapes)], equation=equation)
    summed("Einsum", shapes, shapes, equation=equation)


FACTORS = [*itertools.product(([4], [1, 4], [2, 4], [1], []), ("numbers", "names", "nothing"))]


@pytest.mark.parametrize(("kind", "form"), pairs(REDUCTIONS, FACTORS, 4))
def test_a_gradient_with_fewer_axes_than_a_reduction_reaches_the_right_ones(kind, form):
    factor, given = form
    dims = {"numbers": [2, 4, 4], "names": ["N", "A", 4], "nothing": [None, None, None]}[given]
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[1])
    nodes = [
        axes,
        helper.make_node(f"Reduce{kind}", ["x", "axes"], ["p"], keepdims=0),
        helper.make_node("Mul", ["p", "c"], ["q"]),
        helper.make_node("ReduceSum", ["q"], ["y"], keepdims=0),
    ]
    model = model_of(nodes, ["x", "c"], [dims, factor], rank=[])
    rng = np.random.default_rng(0)
    assert worst_error(model, {"x": rng.uniform(0.5, 2, (2, 4, 4)), "c": rng.uniform(0.5, 2, factor)}) < TOLERANCE


@pytest.mark.parametrize(
    ("equation", "x", "z"),
    [
        ("ij,ij->j", (1, 3), (4, 3)),
        ("ij,ij->", (1, 1), (4, 3)),
        ("ij,jk->k", (2, 1), (3, 4)),
        ("ik,ij->j", (1, 2), (4, 3)),
        ("...j,...j->j", (1, 3), (4, 3)),
    ],
)
def test_a_letter_of_size_1_in_one_operand_of_an_einsum_is_broadcast(equation, x, z):
    dims = [",".join(map(str, shape)) for shape in (x, z)]
    text = f"""<ir_version: 8, opset_import: ["": 21]> g (float[{dims[0]}] x, float[{dims[1]}] z) => (y)
      {{ y = Einsum<equation = "{equation}">(x, z) }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    rng = np.random.default_rng(0)
    assert worst_error(model, {"x": rng.normal(size=x), "z": rng.normal(size=z)}) < TOLERANCE


EMPTY = {name: f"{name}(x, z)" for name in ("Add", "Div", "Max", "Mul", "Pow", "Sub")}
EMPTY |= {"PRelu": "PRelu(z, x)", "Tile": "Tile(x, twice)", "Where": "Where(t, x, z)"}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("sizes", ["A,1,3", "A,B,3"])
def test_empty_operands_have_empty_gradients(name, sizes):
    text = f"""<ir_version: 8, opset_import: ["": 21]> g (float[{sizes}] x, float[A,C,3] z) => (float[P,Q,3] y)
      <int64[3] twice = {{2, 1, 1}}> {{ t = Greater(z, z) y = {EMPTY[name]} }}"""
    derivatives = ortpipe.gradient(onnx.parser.parse_model(text), "y", "x", ones=True)
    feeds = {"x": np.zeros((0, 1, 3), np.float32), "z": np.zeros((0, 4, 3), np.float32)}
    [dx] = PlainSession(derivatives).run({value.name: feeds[value.name] for value in derivatives.graph.input})
    assert dx.shape == (0, 1, 3)
