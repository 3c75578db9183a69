"""A model with branches inside of branches, its parts, and their results."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.runtime.session import Session

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


def nested():
    """Return a model with a branch in a branch, which reads values of the main graph."""
    return onnx.parser.parse_model(TEXT)


def extract(model, outputs):
    """Return the part of a model that computes some outputs."""
    part = ir.from_proto(model)
    keep_outputs(part, outputs)
    return finish(part)


def io(model):
    """Return the names of inputs and outputs."""
    return [v.name for v in model.graph.input], [v.name for v in model.graph.output]


def run(model, *outputs):
    """Return outputs for FEEDS."""
    feeds = {v.name: FEEDS[v.name] for v in model.graph.input}
    return Session(model).run(feeds, outputs)
