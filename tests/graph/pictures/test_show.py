import numpy as np
import onnx
import onnx.parser

from ortpipe.graph.pictures.draw import to_text

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 300] X) => (float[N, 1] Y) <float[1] b = {0.5}> { h = MatMul(X, w)  Y = Add(h, b) }
"""


def model(weight):
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return made


def test_large_tensors_are_cut_to_type_and_shape_and_small_ones_are_shown():
    text = to_text(model(np.full((300, 1), 7.25, np.float32)))
    assert text.startswith("# w: float[300, 1]\n")
    assert "7.25" not in text
    assert "b =  {0.5}" in text
    assert "h = MatMul (X, w)" in text


def test_an_eighth_value_is_shown_and_a_ninth_is_not():
    assert "#" not in to_text(model(np.ones((8, 1), np.float32)))
    assert to_text(model(np.ones((9, 1), np.float32))).startswith("# w: float[9, 1]\n")


def test_a_large_constant_is_cut_too():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 9] X, bool on) => (float[N, 1] Y) {
      Y = If(on) <then_branch = t () => (float[N, 1] A) { A = ReduceSum(X, one) },
                  else_branch = e () => (float[N, 1] B) { B = MatMul(X, w) }> }"""
    made = onnx.parser.parse_model(text)
    weight = onnx.helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(np.full((9, 1), 7.25)))
    made.graph.node[0].attribute[1].g.node.insert(0, weight)
    made.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["one"], value_ints=[1]))
    shown = to_text(made)
    assert shown.startswith("# w: double[9, 1]\n")
    assert "7.25" not in shown
    assert "one = Constant" in shown


def test_showing_a_model_leaves_it_alone():
    shown = model(np.ones((300, 1), np.float32))
    before = shown.SerializeToString()
    assert to_text(shown) == to_text(shown)
    assert shown.SerializeToString() == before
