import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from ortpipe.graph.choice.parameters import choose
from ortpipe.graph.core import query
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.inference import infer
from ortpipe.graph.importing.sizes import capture_unchanged, take_branches
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


@pytest.mark.parametrize("shape", ["Shape(X)", "Shape <start = 0> (X)"])  # the latter by onnx's version converter
def test_branches_that_sizes_decide_are_taken_and_others_stay(shape: str):
    model = ir.from_onnx_text(SIZES.replace("Shape(X)", shape))
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


HANDED_ON = {
    "a Loop": """{ e, w_end, ys = Loop(three, yes, x, w)
      <body = b (int64 i, bool c, float[N,2] h, float[2,2] v) => (bool c1, float[N,2] h1, float[2,2] v1, float[N,2] o)
       { c1 = Less(i, three) z = MatMul(h, v) h1 = Tanh(z) v1 = Identity(v) o = Identity(h1) }>
      y = MatMul(e, w_end) }""",
    "a Scan": """{ w_end, e, ys = Scan<num_scan_inputs = 1,
       body = b (float[2,2] v, float[N,2] h, float[2] row) => (float[2,2] v1, float[N,2] h1, float[N,2] o)
       { v1 = Identity(v) z = MatMul(h, v) t = Tanh(z) h1 = Add(t, row) o = Identity(h1) }>(w, x, rows)
       y = MatMul(e, w_end) }""",
    "nothing but weights": """{ w_end = Loop(three, yes, w)
      <body = b (int64 i, bool c, float[2,2] v) => (bool c1, float[2,2] v1) { c1 = Less(i, three) v1 = Identity(v) }>
      y = MatMul(x, w_end)  ys = Identity(y) }""",
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_a_weight_that_a_loop_hands_from_step_to_step_is_a_weight(name):
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[N,2] x) => (float[N,2] y, float[T,N,2] ys)
      <float[2,2] w = {{1, 0.5, -0.5, 2}}, float[3,2] rows = {{1, 2, 3, 4, 5, 6}}, int64 three = {{3}},
       bool yes = {{1}}>
      {HANDED_ON[name]}"""
    before = onnx.parser.parse_model(text.replace("float[T,N,2] ys", "float[N,2] ys") if "but" in name else text)
    model = ir.from_proto(before)
    capture_unchanged(model.graph)
    after = finish(model)
    assert choose(model.graph, query.value(model.graph, "y")).trained[:1] == ("w",)
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)}
    for got, expected in zip(Session(after).run(feeds), Session(before).run(feeds), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_state_that_a_step_changes_or_swaps_stays_one():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21]>
      g (float[2] x, float[2] w) => (float[2] a, float[2] b) <int64 three = {3}, bool yes = {1}>
      { a, b = Loop(three, yes, x, w) <body = s (int64 i, bool c, float[2] u, float[2] v)
        => (bool c1, float[2] v, float[2] u) { c1 = Identity(c) }> }""")
    capture_unchanged(model.graph)
    assert len(model.graph[0].inputs) == 4
