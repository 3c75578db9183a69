import numpy as np
import onnx_ir as ir

from ortpipe.graph.branches import take_branches
from ortpipe.graph.check import finish, infer
from ortpipe.runtime.session import Session

SIZES = """
<ir_version: 10, opset_import: ["" : 21]> g (float[N, 3, 1] X, bool c) => (float[N, 3] y)
  <int64 one = {1}, int64[1] two = {2}> {
  shape = Shape(X)  last = Gather <axis = 0> (shape, two)  flat = Equal(last, one)
  a = If(flat) <then_branch = t () => (float[N, 3] p) { p = Squeeze(X, two) },
                else_branch = e () => (float[N, 3, 1] q) { q = Identity(X) }>
  rank = Shape(a)  axes = Size(rank)  even = Equal(axes, two)
  b = If(even) <then_branch = t () => (float[N, 3] p)
                 { r = If(c) <then_branch = t () => (float[N, 3] s) { s = Neg(a) },
                              else_branch = e () => (float[N, 3] s) { s = Abs(a) }>  p = Identity(r) },
                else_branch = e () => (float[N, 3] p) <float[1] k = {7}> { p = Add(a, k) }>
  y = If(flat) <then_branch = t () => (float[N, 3] p) { p = Identity(b) },
                else_branch = e () => (float[N, 3] p) { p = Neg(b) }> }
"""


def test_branches_that_sizes_decide_are_taken_and_others_stay():
    model = ir.from_onnx_text(SIZES)
    infer(model)
    take_branches(model)
    assert [node.op_type for node in model.graph.all_nodes()].count("If") == 1
    assert not model.graph.initializers.keys() & {"k"}
    feeds = {"X": np.array([[[1.0], [-2.0], [3.0]]], np.float32), "c": np.array(False)}
    np.testing.assert_array_equal(Session(finish(model)).run(feeds)[0], [[1, 2, 3]])


def test_a_condition_that_is_not_known_is_left():
    text = SIZES.replace("N, 3, 1] X", "N, 3, M] X")
    model = ir.from_onnx_text(text)
    before = [node.op_type for node in model.graph.all_nodes()].count("If")
    take_branches(model)
    assert [node.op_type for node in model.graph.all_nodes()].count("If") == before
