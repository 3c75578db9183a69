"""Biases carried as rows: the same epoch with a node less for each."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ortpipe.runtime.session import Session
from ortpipe.stages.train.biases import with_biases_as_rows

FEEDS = {
    "b": np.array([0.5, -1.0], np.float32),
    "X": np.random.default_rng(0).normal(size=(5, 3, 2)).astype(np.float32),
}
ONES = "ones = Constant<value = float[3] {1, 1, 1}>()"
FIRST = "zero = Constant<value_ints=[0]>()"
LOSS = "s = Mul(y, y) loss = ReduceMean<keepdims=0>(s)"
TWO = "two = Constant<value = float[3] {1, 2, 1}>()"
AGAIN = "s = Mul(g, g) loss = ReduceMean<keepdims=0>(s)"
UNIT = "one = Constant<value = float[2,2] {1, 0, 0, 1}>()"
GEMM = f"{UNIT} y = Gemm(x, one, c)"
# what the step does → its nodes, and how many of them are left
BODIES = {
    "a bias of a Gemm, summed by a product": (f"{ONES} {GEMM} g = MatMul(ones, y) d = Add(c, g) {LOSS}", 4),
    "its operands the other way around": (f"{ONES} {GEMM} g = MatMul(ones, y) d = Add(g, c) {LOSS}", 4),
    "summed by a reduction": (f"{FIRST} {GEMM} g = ReduceSum<keepdims=0>(y, zero) d = Add(c, g) {LOSS}", 4),
    "another use of the bias": (f"{ONES} y = Add(x, c) g = MatMul(ones, y) d = Add(c, g) {LOSS}", 5),
    "weights that are not one": (f"{TWO} {GEMM} g = MatMul(two, y) d = Add(c, g) {LOSS}", 5),
    "a sum that is read again": (f"{ONES} {GEMM} g = MatMul(ones, y) d = Add(c, g) {AGAIN}", 5),
}


def nodes(model):
    [scan] = [n for n in model.graph.node if n.op_type == "Scan"]
    [body] = [a.g for a in scan.attribute if a.HasField("g")]
    return [n.op_type for n in body.node if n.op_type != "Constant"]


@pytest.mark.parametrize("name", BODIES)
def test_the_epoch_stays_what_it_is(name):
    body, left = BODIES[name]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2] b, float[s,3,2] X) => (float[2] end, float[s] losses) {{
        end, losses = Scan<num_scan_inputs=1,
          body = step (float[2] c, float[3,2] x) => (float[2] d, float loss) {{ {body} }}>(b, X) }}"""
    )
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    made = with_biases_as_rows(model)
    onnx.checker.check_model(made, full_check=True)
    assert len(nodes(made)) == left
    assert [o.name for o in made.graph.output] == ["end", "losses"]
    for a, b in zip(Session(made).run(FEEDS), Session(model).run(FEEDS), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5)
