from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortpipe.graph.check import finish
from ortpipe.graph.rewrite import rewrite
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.engines.ort_lowering import DOMAIN, RULES, without_yield

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


# Backward operators, called as Op(dy, y): operator, attributes, forward function, shape
BACKWARD = [
    ("ReluGrad", "", lambda x: np.maximum(x, 0), (4, 3)),
    ("SigmoidGrad", "", lambda x: 1 / (1 + np.exp(-x)), (4, 3)),
    ("TanhGrad", "", np.tanh, (4, 3)),
    ("SoftmaxGrad_13", "<axis=-1>", lambda x: softmax(x, -1), (4, 3)),
    ("SoftmaxGrad_13", "<axis=0>", lambda x: softmax(x, 0), (4, 3)),
    ("SoftmaxGrad_13", "<axis=1>", lambda x: softmax(x, 1), (2, 3, 2)),
    ("SoftmaxGrad_13", "", lambda x: softmax(x, -1), (4, 3)),
    ("LogSoftmaxGrad_13", "<axis=-1>", lambda x: np.log(softmax(x, -1)), (4, 3)),
    ("LogSoftmaxGrad_13", "<axis=1>", lambda x: np.log(softmax(x, 1)), (2, 3, 2)),
    ("LogSoftmaxGrad_13", "", lambda x: np.log(softmax(x, -1)), (4, 3)),
]
# Others, called as Op(a, b): operator, attributes, what they compute, shapes
PRODUCTS = [
    ("FusedMatMul", "", lambda a, b: a @ b, (4, 3), (3, 2)),
    ("FusedMatMul", "<transA=1>", lambda a, b: a.T @ b, (3, 4), (3, 2)),
    ("FusedMatMul", "<transB=1, alpha=0.5>", lambda a, b: 0.5 * a @ b.T, (4, 3), (2, 3)),
    ("FusedMatMul", "<transA=1, transB=1>", lambda a, b: a.T @ b.T, (3, 4), (2, 3)),
    ("Scale", "", lambda a, b: a * b, (4, 3), ()),
    ("Scale", "<scale_down=0>", lambda a, b: a * b, (4, 3), ()),
    ("Scale", "<scale_down=1>", lambda a, b: a / b, (4, 3), ()),
]

DY, A, B = np.array([[1.0], [-2.0]]), np.array([[3.0], [0.5]]), np.array([[2.0], [-4.0]])
PLACES = np.array([[1, 0, 1], [0, 0, 0]])
# With more inputs: operator, graph, feeds, what it computes
OTHERS = [
    (
        "DivGrad",
        "(double[2,1] dy, double[2,1] a, double[2,1] b) => (double[2,1] da, double[2,1] db) "
        "{ da, db = com.microsoft.DivGrad(dy, a, b) }",
        {"dy": DY, "a": A, "b": B},
        [DY / B, -DY * A / B**2],
    ),
    (
        "GatherElementsGrad",
        "(double[2,3] dy, int64[2] shape, int64[2,3] places) => (double[2,2] dx) "
        "{ dx = com.microsoft.GatherElementsGrad<axis=-1>(dy, shape, places) }",
        {"dy": np.arange(6.0).reshape(2, 3), "shape": np.array([2, 2]), "places": PLACES},
        [[[1.0, 2.0], [12.0, 0.0]]],
    ),
]


def model_of(op, attributes, first, second, out, dtype="double", optional=""):
    kind = {"double": "double", "float": "float"}[dtype]
    shapes = ["[" + ",".join(map(str, s)) + "]" if s else "" for s in (first, second, out)]
    return onnx.parser.parse_model(
        f"{HEADER} g ({kind}{shapes[0]} a, {kind}{shapes[1]} b) => ({kind}{shapes[2]} c)"
        f" {{ c = com.microsoft.{op}{attributes}(a, b) }}"
    )


def lowered(model):
    own = ir.from_proto(model)
    rewrite(own.graph, RULES, DOMAIN)
    return finish(own)


def test_the_tables_of_cases_hold_every_rule():
    assert {row[0] for row in (*BACKWARD, *PRODUCTS, *OTHERS)} == set(RULES)


@pytest.mark.parametrize(("op", "attributes", "forward", "shape"), BACKWARD)
def test_a_backward_operator_becomes_the_central_difference_of_its_forward(op, attributes, forward, shape):
    rng = np.random.default_rng(2)
    x, dy = rng.normal(size=shape), rng.normal(size=shape)
    model = lowered(model_of(op, attributes, shape, shape, shape))
    assert {node.domain for node in model.graph.node} == {""}
    [got] = Session(model).run({"a": dy, "b": forward(x)})
    expected = np.zeros(shape)
    for place in np.ndindex(shape):
        step = np.zeros(shape)
        step[place] = 1e-5
        expected[place] = (dy * (forward(x + step) - forward(x - step))).sum() / 2e-5
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("training_build")
@pytest.mark.parametrize(("op", "attributes", "forward", "shape"), BACKWARD)
def test_it_is_what_the_training_builds_own_kernel_gives(op, attributes, forward, shape):
    """onnxruntime-training 1.19.2."""
    rng = np.random.default_rng(2)
    x, dy = rng.normal(size=shape), rng.normal(size=shape).astype(np.float32)
    model = model_of(op, attributes, shape, shape, shape, "float")
    feeds = {"a": dy, "b": forward(x).astype(np.float32)}
    np.testing.assert_allclose(
        Session(lowered(model)).run(feeds)[0], Session(model).run(feeds)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("op", "attributes", "formula", "first", "second"), PRODUCTS)
def test_a_product_becomes_its_formula_in_standard_operators(op, attributes, formula, first, second):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=first), rng.uniform(1, 2, size=second)
    expected = formula(a, b)
    model = lowered(model_of(op, attributes, first, second, expected.shape))
    assert {node.domain for node in model.graph.node} == {""}
    np.testing.assert_allclose(Session(model).run({"a": a, "b": np.asarray(b)})[0], expected, rtol=1e-12)


@pytest.mark.parametrize(("op", "graph", "feeds", "expected"), OTHERS)
def test_a_gradient_of_several_inputs_becomes_its_formula(op, graph, feeds, expected):
    model = lowered(onnx.parser.parse_model(f"{HEADER} g {graph}"))
    assert {node.domain for node in model.graph.node} == {""}
    for got, values in zip(Session(model).run(feeds), expected, strict=True):
        np.testing.assert_allclose(got, values, rtol=1e-12)


def test_values_keep_their_names_when_their_node_is_rewritten():
    text = """g (float[2] dy, float[2] y) => (float[2] dx)
     { t = com.microsoft.TanhGrad(dy, y) dx = com.microsoft.ReluGrad(t, y) }"""
    model = lowered(onnx.parser.parse_model(HEADER + text))
    assert {"t", "dx"} <= {name for node in model.graph.node for name in node.output}
    [got] = Session(model).run({"dy": np.array([2, 3], np.float32), "y": np.array([0.5, -0.5], np.float32)})
    np.testing.assert_allclose(got, [1.5, 0])


@pytest.mark.parametrize(
    ("first", "second", "attributes"),
    [((2, 4, 3), (3, 2), ""), ((2, 4, 3), (2, 3, 2), ""), ((2, 4, 3), (2, 3), "<transB=1>")],
)
def test_a_product_of_other_ranks_stays(first, second, attributes):
    model = model_of("FusedMatMul", attributes, first, second, (2, 4, 2), "float")
    assert [n.op_type for n in lowered(model).graph.node] == ["FusedMatMul"]


def test_an_operator_without_rule_stays():
    text = "g (float[2] dy, float[2] x) => (float[2] dx) { dx = com.microsoft.GeluGrad(dy, x) }"
    model = onnx.parser.parse_model(HEADER + text)
    assert [n.op_type for n in lowered(model).graph.node] == ["GeluGrad"]


def test_a_standard_operator_of_the_same_name_is_not_touched():
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    assert [n.op_type for n in lowered(onnx.parser.parse_model(HEADER + text)).graph.node] == ["Relu"]


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_the_yield_between_forward_and_backward_becomes_a_gradient_of_one(kind, dtype):
    text = f"""g ({kind}[2] x) => ({kind}[2] dx)
     {{ loss = ReduceSum<keepdims=0>(x) d = com.microsoft.YieldOp<full_shape_outputs=[0]>(loss) dx = Mul(d, x) }}"""
    own = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEADER + text)))
    without_yield(own.graph)
    model = finish(own)
    assert [o.name for o in model.graph.output] == ["loss", "dx"]
    loss, dx = Session(model).run({"x": np.array([2, 3], dtype)})
    assert loss == 5
    np.testing.assert_array_equal(dx, [2, 3])
    assert dx.dtype == dtype
