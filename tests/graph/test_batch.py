from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from ortpipe.graph.batch import name_batch

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[?,2] X, float[M,1] label, float[3,2] fixed, float s)
 => (float[A,2] y) <float[2] w = {1, 2}> { a = Mul(X, w) y = Mul(a, s) }"""


def test_dynamic_batches_are_called_n_and_other_dimensions_stay():
    graph = ir.from_proto(onnx.parser.parse_model(TEXT)).graph
    name_batch(graph)
    assert [str(value.shape) for value in graph.inputs] == ["[N,2]", "[N,1]", "[3,2]", "[]"]
    assert [value.shape for node in graph for value in node.outputs] == [None, None]
