"""Moving the nodes of further outputs from one model to another."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.engines.ort import add_outputs

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X, float[N, 1] label, bool flag) => (float[] loss, float[N, 1] Y, float[N, 1] chosen)
<float[3, 1] w = {1, 2, 3}, float[1] b = {0.5}, float[1] deep = {4}>
{
  h = MatMul(X, w)
  Y = Add(h, b)
  d = Sub(Y, label)
  s = Mul(d, d)
  loss = ReduceSum<keepdims = 0>(s)
  late = Mul(h, deep)
  chosen = If (flag) <
    then_branch = yes () => (float[N, 1] a) {
      a = If (flag) <
        then_branch = yes2 () => (float[N, 1] e) { e = Neg(late) },
        else_branch = no2 () => (float[N, 1] f) { f = Neg(h) }
      >
    },
    else_branch = no () => (float[N, 1] c) { c = Identity(Y) }
  >
}
"""
FEEDS = {
    "X": np.arange(6, dtype=np.float32).reshape(2, 3),
    "label": np.ones((2, 1), np.float32),
    "flag": np.array(True),
}


@pytest.fixture
def model():
    return onnx.parser.parse_model(TEXT)


def extract(model, outputs):
    part = ir.from_proto(model)
    keep_outputs(part, outputs)
    return finish(part)


def graft(part, source, outputs):
    whole = ir.from_proto(part)
    add_outputs(whole, ir.from_proto(source), outputs)
    return finish(whole)


def io(model):
    return [v.name for v in model.graph.input], [v.name for v in model.graph.output]


def run(model, *outputs):
    given = {v.name: FEEDS[v.name] for v in model.graph.input}
    return Session(model).run(given, outputs)


@pytest.mark.parametrize("wanted", [["chosen"], ["loss"], ["loss", "chosen"], ["Y"]])
def test_what_is_grafted_computes_the_same_as_in_its_source(model, wanted):
    part = extract(model, ["Y"])
    whole = graft(part, model, wanted)
    assert set(io(whole)[1]) == {"Y", *wanted}
    for one, other in zip(run(whole, *wanted), run(model, *wanted), strict=True):
        np.testing.assert_array_equal(one, other)


def test_grafting_reuses_what_is_there(model):
    whole = graft(extract(model, ["Y"]), model, ["loss"])
    made = [name for node in whole.graph.node for name in node.output]
    assert sorted(made) == sorted(set(made)) == ["Y", "d", "h", "loss", "s"]


def test_grafting_brings_the_opset_of_another_domain():
    text = (
        '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 3]> g (float[N, 2] X) => (float[N, 2] Y, int64[N] L) '
    )
    text += "<float[2] w = {1, 2}, float[2] names = {3, 5}> "
    text += "{ Y = Mul(X, w) i = ArgMax<axis = 1, keepdims = 0>(Y) p = ai.onnx.ml.Binarizer(Y) "
    text += "q = ReduceSum<keepdims = 0>(p) n = Cast<to = 7>(q) L = Add(i, n) }"
    source = onnx.parser.parse_model(text)
    part = extract(source, ["Y"])
    del part.opset_import[:]
    part.opset_import.add(domain="", version=17)
    assert {o.domain for o in graft(part, source, ["L"]).opset_import} == {"", "ai.onnx.ml"}
