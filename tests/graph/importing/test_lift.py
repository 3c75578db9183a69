import onnx_ir as ir
import pytest

from ortpipe.graph.core.check import finish
from ortpipe.graph.importing.lift import float_constants, lift

TEXT = """
<ir_version: 10, opset_import: ["" : 21]> g (float[N, 2] X, bool c) => (float[N, 2] y) {
  w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()  v = Identity(w)  b = Constant <value_floats = [1.0, 2.0]> ()
  low = Constant <value = float {0}> ()  half = Constant <value_floats = [0.5]> ()
  h = MatMul(X, v)  s = Add(h, b)  r = Clip(s, low)  t = Mul(r, half)
  y = If(c) <then_branch = t1 () => (float[N, 2] a) { k = Constant <value = float[2, 2] {1, 0, 0, 1}> ()
                                                      a = MatMul(t, k) },
             else_branch = t2 () => (float[N, 2] d) <float[2, 2] k = {5, 6, 7, 8}> { d = MatMul(t, k) }> }
"""


def constants(names=None):
    model = ir.from_onnx_text(TEXT)
    graph = model.graph
    lifted = lift(graph, float_constants(graph), graph.outputs, None if names is None else lambda _: names)
    return model, lifted


def test_weights_in_constants_and_in_branches_become_initializers_and_settings_stay():
    model, lifted = constants()
    assert lifted == ["w", "b", "k_1", "k_2"]  # two branches, each with its own k
    assert [len(model.graph.initializers[name].uses()) for name in lifted] == [1] * 4
    finish(model)
    assert [node.op_type for node in model.graph][:2] == ["Identity", "Constant"]


@pytest.mark.parametrize("names", [[], ["b"]])
def test_what_is_named_is_lifted_and_nothing_else(names):
    before = len(list(ir.from_onnx_text(TEXT).graph))
    model, lifted = constants(names)
    assert lifted == names == list(model.graph.initializers)
    assert len(list(model.graph)) == before - len(names)


def test_a_lifted_weight_says_where_it_came_from():
    model, _ = constants()
    assert model.graph.initializers["w"].meta["origin"] == {"node": "w", "attribute": "value"}


def test_weights_that_a_constant_of_shape_makes_are_lifted():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 2] X) => (float[N, 3] y) <int64[2] s = {2, 3}> {
      w = ConstantOfShape <value = float[1] {0.5}> (s)  y = MatMul(X, w) }"""
    graph = ir.from_onnx_text(text).graph
    assert lift(graph, float_constants(graph), graph.outputs) == ["w"]
    assert graph.initializers["w"].const_value.numpy().tolist() == [[0.5] * 3] * 2
