from __future__ import annotations

import onnx_ir as ir
import pytest

from ortpipe.errors import ModelError
from ortpipe.graph.core.check import finish
from ortpipe.graph.importing.batch import name_batch
from ortpipe.graph.pictures.draw import type_of

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[?,2] X, float[M,1] label, float[3,2] fixed, float s,
 float[N,N] pairs) => (float[A,2] y) <float[2] w = {1, 2}> { a = Mul(X, w) y = Mul(a, s) }"""


def test_dynamic_batches_are_called_n_and_other_dimensions_stay():
    graph = name_batch(ir.from_onnx_text(TEXT)).graph
    assert [str(value.shape) for value in graph.inputs] == ["[N,2]", "[N,1]", "[3,2]", "[]", "[N,N]"]
    assert [str(value.shape) for node in graph for value in node.outputs] == ["[N,2]", "[N,2]"]


LOOP = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[batch, 2] X) => (float[batch, 2] y) <int64 steps = {3}, float[2, 2] w = {1, 2, 3, 4}, float[batch, 2] h>
{ h = Loop(steps, , X) <body = b (int64 i, bool go, float[batch, 2] a) => (bool on, float[batch, 2] next)
    { on = Identity(go)  next = MatMul(a, w) }>
  y = Relu(h) }
"""
CUSTOM = """
<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
g (float[batch, 2] X) => (float[batch, 3] y)
<float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 1, 1}, float[batch, 3] h>
{ h = com.microsoft.FusedGemm <activation = "Relu"> (X, w, b)  y = Neg(h) }
"""


@pytest.mark.parametrize("text", [LOOP, CUSTOM], ids=["loop", "com.microsoft"])
def test_declared_shapes_hold_where_inference_finds_none_and_call_the_batch_n(text):
    model = finish(name_batch(ir.from_onnx_text(text)))
    [h] = [v for v in model.graph.value_info if v.name == "h"]
    assert [type_of(v).replace("float", "") for v in (h, *model.graph.output)] == [type_of(h)[5:]] * 2
    assert type_of(h).startswith("float[N, ")


def test_a_declared_shape_gives_way_to_what_inference_finds():
    text = TEXT.replace("float[2] w", "float[7, 7] a, float[2] w")
    graph = name_batch(ir.from_onnx_text(text)).graph
    assert [str(value.shape) for node in graph for value in node.outputs] == ["[N,2]", "[N,2]"]


def test_an_operator_behind_which_nothing_is_known_is_named():
    text = CUSTOM.replace(", float[batch, 3] h", "")
    with pytest.raises(ModelError, match=r"com\.microsoft\.FusedGemm at node 'h' gives 'h'"):
        finish(
            name_batch(ir.from_onnx_text(text.replace("float[batch, 3] y", "float[] y").replace("Neg(h)", "Abs(h)")))
        )


def test_a_value_of_unknown_type_is_refused_by_its_operators_name():
    text = CUSTOM.replace(", float[batch, 3] h", "")
    with pytest.raises(ModelError, match=r"com\.microsoft\.FusedGemm at node 'h' gives 'h'"):
        name_batch(ir.from_onnx_text(text))
