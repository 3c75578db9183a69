from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from autodiff.numeric import worst_error
from engines import native
from plain_session import PlainSession

from ortpipe.autodiff import backward, walk
from ortpipe.autodiff.backward import Backward
from ortpipe.autodiff.table import RULES
from ortpipe.autodiff.walk import gradients
from ortpipe.errors import DeriveError
from ortpipe.graph.core.types import broadcast


def parsed(text, opset=21):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def derived(text, by, opset=21):
    return native(parsed(text, opset), "loss", [], by)


def operators(model):
    return Counter(node.op_type for node in model.graph.node)


@pytest.fixture
def op():
    model = ir.from_proto(parsed("g (float[N,3] x, float[N,3] z) => (float[N,3] y) { y = Tanh(x) }"))
    return Backward(model.graph, RULES)


def test_the_same_expression_is_computed_once(op):
    x, z = op.graph.inputs
    assert op.Mul(op.Exp(x), z) is op.Mul(op.Exp(x), z)
    assert op.Mul(x, z) is not op.Mul(z, z)
    assert op.ReduceSum(x, keepdims=0) is not op.ReduceSum(x, keepdims=1)


def test_what_the_forward_computed_is_used_again(op):
    x, _ = op.graph.inputs
    assert op.Tanh(x) is op.graph.outputs[0]


def test_factors_of_one_and_minus_one_vanish(op):
    x, _ = op.graph.inputs
    assert op.Mul(x, op.like(1, x)) is x
    assert op.Mul(op.like(1, x), x) is x
    assert op.Mul(x, op.like(-1, x)).producer().op_type == "Neg"
    assert op.Neg(op.Neg(x)) is x


def test_scalar_factors_are_gathered_into_one(op):
    x, _ = op.graph.inputs
    scaled = op.Mul(op.Mul(x, op.like(2, x)), op.like(3, x)).producer()
    assert scaled.inputs[0] is x
    assert ir.convenience.get_const_tensor(scaled.inputs[1]).numpy() == 6


def test_two_equal_gradients_are_one_times_two(op):
    x, z = op.graph.inputs
    assert op.total([z, z], x).producer().op_type == "Mul"
    assert op.total([z], x) is z


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([["N", 3], [3]], ["N", 3]),
        ([["N", 1], [1, 4]], ["N", 4]),
        ([["N"], ["M"]], [None]),
        ([[None, 3], [None, 3]], [None, 3]),
        ([["N"], [5]], [5]),
    ],
)
def test_a_broadcast_names_only_what_is_certain(shapes, expected):
    assert list(broadcast([ir.Shape(s) for s in shapes])) == list(ir.Shape(expected))


def test_a_missing_rule_names_operator_node_value_and_folder():
    text = """g (float[1,1,2,4] x, float[4,3] w, float[3] b, float[3] c, float[1,5] r) => (float loss)
     { m = MatMul(x, w) h = Add(m, b) [strange] d = MaxRoiPool<pooled_shape=[1, 1]>(h, r)
       z = Mul(d, c) loss = ReduceSum<keepdims=0>(z) }"""
    with pytest.raises(DeriveError) as error:
        derived(text, ["w", "b", "c"])
    parts = ("MaxRoiPool", "'strange'", "cuts off 'b', 'w'", "with respect to them", "ortpipe/autodiff/rules/")
    for part in parts:
        assert part in str(error.value)


def test_an_operator_without_a_rule_is_no_hindrance_off_the_path():
    text = """g (float[3,3] x, float[3,3] w) => (float loss)
     { u = Unique(x) d = ReduceSum<keepdims=0>(u) h = MatMul(x, w) y = Mul(h, d) loss = ReduceSum<keepdims=0>(y) }"""
    derived(text, ["w"])


def test_integers_and_booleans_stop_the_gradient():
    text = """g (float[N,3] x) => (float loss)
     { k = Cast<to=7>(x) f = Cast<to=1>(k) c = Greater(x, f) g = Cast<to=1>(c)
     best = ArgMax(x) b = Cast<to=1>(best) a = Mul(x, f) e = Mul(a, g) y = Add(e, b)
     loss = ReduceSum<keepdims=0>(y) }"""
    model, names = derived(text, ["x"])
    x = np.array([[1.5, -1.5, 2.5]], np.float32)
    [dx] = PlainSession(model).run({"x": x}, [names["x"]])
    np.testing.assert_array_equal(dx, np.trunc(x) * (x > np.trunc(x)))


def test_a_loss_that_depends_on_nothing_has_no_gradient():
    assert derived("g (float[N] x) => (float loss) { s = Size(x) loss = Cast<to=1>(s) }", ["x"])[1] == {}


def test_a_function_of_the_model_is_differentiated_through_its_body():
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
     g (double[2,3] x) => (double[2,3] y) { h = own.Twice(x) y = own.Half<by=0.25>(h) }
     <domain: "own", opset_import: ["" : 21]> Twice (a) => (b) { e = Exp(a) b = Mul(e, a) }
     <domain: "own", opset_import: ["" : 21]> Half<by>(a) => (b)
     { s = Constant<value_float: float = @by>() c = CastLike(s, a) b = Mul(a, c) }"""
    model = onnx.parser.parse_model(text)
    assert worst_error(model, {"x": np.random.default_rng(0).normal(size=(2, 3))}) < 1e-6


NETWORK = """g (float[N,3] x, float[N,1] t, float[3,4] w, float[4] b, float[4,1] u) => (float loss)
 { a = MatMul(x, w) c = Add(a, b) h = Relu(c) z = MatMul(h, u) d = Sub(z, t) e = Mul(d, d)
   loss = ReduceMean<keepdims=0>(e) }"""


def test_gradients_are_the_same_without_the_file_that_simplifies_them(monkeypatch):
    rng, shapes = np.random.default_rng(0), {"w": (3, 4), "b": (4,), "u": (4, 1), "x": (7, 3), "t": (7, 1)}
    feeds = {name: rng.normal(size=shape).astype("f") for name, shape in shapes.items()}
    simple = derived(NETWORK, ["w", "b", "u", "x"])
    for module in (backward, walk):
        monkeypatch.setattr(module, "SIMPLIFIER", None)
    plain = derived(NETWORK, ["w", "b", "u", "x"])
    assert len(plain[0].graph.node) > len(simple[0].graph.node)
    results = (PlainSession(model).run(feeds, list(names.values())) for model, names in (simple, plain))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 15, 18, 21])
def test_one_graph_serves_every_batch_size(opset):
    model, names = derived(NETWORK, ["w", "b", "u", "x"], opset)
    rng = np.random.default_rng(0)
    shared = {n: rng.normal(size=s).astype("f") for n, s in {"w": (3, 4), "b": (4,), "u": (4, 1)}.items()}
    for rows in (1, 2, 7):
        feeds = {**shared, "x": rng.normal(size=(rows, 3)).astype("f"), "t": rng.normal(size=(rows, 1)).astype("f")}
        assert worst_error(parsed(NETWORK, opset), feeds) < 1e-6
        got = PlainSession(model).run(feeds, list(names.values()))
        assert [g.shape for g in got] == [feeds[n].shape for n in names]


def chain(layers):
    nodes, last = "", "x"
    for i in range(layers):
        nodes += f"a{i} = MatMul({last}, w) c{i} = Add(a{i}, b) h{i} = Relu(c{i}) "
        last = f"h{i}"
    return (
        f"g (float[N,4] x, float[4,4] w, float[4] b) => (float loss) {{ {nodes} loss = ReduceSum<keepdims=0>({last}) }}"
    )


def test_a_chain_twice_as_deep_has_twice_the_nodes():
    hundred, two_hundred = (len(derived(chain(n), ["w", "b"])[0].graph.node) for n in (100, 200))
    per_layer = (two_hundred - hundred) / 100
    assert (
        per_layer == int(per_layer) <= 11
    )  # forward 3; mask 2 and product, dh, dw, db, and the sums over layers of dw and db
    assert hundred < 100 * per_layer + 20


def test_a_mean_of_squares_costs_one_division_and_one_product_backwards():
    text = "g (float[N,3] x) => (float loss) { e = Mul(x, x) loss = ReduceMean<keepdims=0>(e) }"
    kinds = [node.op_type for node in derived(text, ["x"])[0].graph.node]
    assert (kinds.count("Div"), kinds.count("Mul")) == (1, 2)  # 2/n, and x·x in the loss and (2/n)·x in its gradient


GRAPHS = {
    "network": (NETWORK, ["w", "b", "u"]),
    "chain": (chain(5), ["w", "b", "x"]),
    "softmax": (
        """g (float[N,3] x, int64[N] i) => (float loss)
         { y = LogSoftmax(x) at = Constant<value_ints=[1]>() j = Unsqueeze(i, at) p = GatherElements<axis=1>(y, j)
           m = ReduceMean<keepdims=0>(p) loss = Neg(m) }""",
        ["x"],
    ),
    "loss function": ("g (float[N,3] x, int64[N] i) => (float loss) { loss = SoftmaxCrossEntropyLoss(x, i) }", ["x"]),
    "broadcast of names": (
        "g (float[N,3] x, float[M,3] z) => (float loss) { y = Mul(x, z) loss = ReduceSum<keepdims=0>(y) }",
        ["x", "z"],
    ),
    "slices": (
        """g (float[N,6] x) => (float loss) <int64[1] s = {1}, int64[1] e = {4}, int64[1] a = {1}>
         { y = Slice(x, s, e, a) t = Transpose(y) z = Concat<axis=0>(t, t) v = Exp(z)
           loss = ReduceSum<keepdims=0>(v) }""",
        ["x"],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_node_of_a_derived_graph_is_needed(name):
    model, _ = derived(*GRAPHS[name])
    used = {o.name for o in model.graph.output}
    for node in reversed(model.graph.node):
        assert used.intersection(node.output), f"{node.op_type} {node.name} is dead"
        used.update(node.input)
    keys = [(n.op_type, tuple(n.input), str(n.attribute)) for n in model.graph.node]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", GRAPHS)
def test_a_derived_graph_passes_the_full_check_and_strict_inference(name):
    model, _ = derived(*GRAPHS[name])
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_model_gives_the_same_bytes(name):
    first, second = (derived(*GRAPHS[name])[0].SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_the_model_that_came_in_is_not_touched():
    model = parsed(NETWORK)
    before = model.SerializeToString()
    native(model, "loss", [], ["w"])
    assert model.SerializeToString() == before


def test_the_walk_expands_casts_and_notes_shapes_so_that_a_rule_need_not():
    text = """g (float[2,3] x) => (float loss)
        { a = Constant<value_int=1>() y = CumSum(x, a) loss = ReduceSum<keepdims=0>(y) }"""
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(parsed(text))).graph
    shapes = []

    def rule(op, node, dy, x, axis):
        shapes.append(dy.shape)
        return [op.Cast(dy, to=ir.DataType.DOUBLE)]  # no gradient for the axis, and another type than x

    op, [x], [loss] = Backward(graph, {**RULES, "CumSum": rule}), graph.inputs, graph.outputs
    dx = gradients(op, [(loss, op.like(1, loss))], [x])[x]
    assert shapes == [ir.Shape([2, 3])]
    assert (dx.dtype, dx.shape) == (ir.DataType.FLOAT, ir.Shape([2, 3]))
