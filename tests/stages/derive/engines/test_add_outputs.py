"""Moving the nodes of further outputs from one model to another."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graph.core.nested import extract, io, nested, run

from ortpipe.graph.core.check import finish
from ortpipe.stages.derive.engines.ort import add_outputs


@pytest.fixture
def model():
    return nested()


def graft(part, source, outputs):
    whole = ir.from_proto(part)
    add_outputs(whole, ir.from_proto(source), outputs)
    return finish(whole)


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
