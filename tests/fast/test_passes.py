"""The passes over an epoch: each alone leaves it the same function, in fewer nodes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.fast import passes
from ortpipe.fast.epoch import EpochGraph
from ortpipe.fast.passes import (
    PASSES,
    carry_biases_as_rows,
    join_products,
    share_exponentials,
    start_at_rate,
)
from ortpipe.graph.core.check import finish
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

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


def epoch_text(carried, body, *, rate=False):
    """Return Scan(b; X, the rates) → (end, losses) whose step is a text: (c, x, r) → (d, loss)."""
    more, inner, third = (", float[s] rate", ", float r", ", rate") if rate else ("", "", "")
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g ({carried} b, float[s,3,2] X{more}) => ({carried} end, float[s] losses) {{
        end, losses = Scan<num_scan_inputs={1 + rate},
          body = step ({carried} c, float[3,2] x{inner}) => ({carried} d, float loss) {{ {body} }}>(b, X{third}) }}"""
    )
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def assert_same(model, one, feeds, left, **facts):
    epoch = EpochGraph(ir.from_proto(model), **facts)
    one(epoch)
    faster = finish(epoch.model)
    assert left in (nodes(faster), len(nodes(faster)))
    assert [o.name for o in faster.graph.output] == ["end", "losses"]
    for a, b in zip(Session(faster).run(feeds), Session(model).run(feeds), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("name", BODIES)
def test_biases_are_carried_as_rows_where_that_saves_a_node(name):
    body, left = BODIES[name]
    assert_same(epoch_text("float[2]", body), carry_biases_as_rows, FEEDS, left)


PRODUCTS = {
    "a product and a weight": ("g = Gemm<transA=1>(x, x) d = Add(c, g)", ["Gemm", "ReduceMean"]),
    "the other way around": ("g = Gemm<transA=1>(x, x) d = Add(g, c)", ["Gemm", "ReduceMean"]),
    "the addend that the training build leaves out": (
        "g = Gemm<transA=1, beta=0.0>(x, x) d = Add(c, g)",
        ["Gemm", "ReduceMean"],
    ),
    "a product that has an addend": ("g = Gemm<transA=1>(x, x, c) d = Add(c, g)", ["Gemm", "Add", "ReduceMean"]),
    "a product that is read again": (
        "g = Gemm<transA=1>(x, x) h = Add(c, g) d = Mul(h, g)",
        ["Gemm", "Add", "Mul", "ReduceMean"],
    ),
    "a product and a weight times a number": (
        "half = Constant<value_float=0.5>() k = Mul(c, half) g = Gemm<transA=1>(x, x) d = Add(k, g)",
        ["Gemm", "ReduceMean"],
    ),
    "a weight times a number that is read again": (
        "half = Constant<value_float=0.5>() k = Mul(c, half) g = Gemm<transA=1>(x, x) h = Add(k, g) d = Sub(h, k)",
        ["Mul", "Gemm", "Sub", "ReduceMean"],
    ),
    "a product of another shape": (
        "one = Constant<value = float[2,1] {1, 2}>() g = Gemm(c, one) d = Add(c, g)",
        ["Gemm", "Add", "ReduceMean"],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_accumulated_onto_what_it_is_added_to(name):
    body, left = PRODUCTS[name]
    model = epoch_text("float[2,2]", f"{body} loss = ReduceMean<keepdims=0>(x)")
    feeds = {"b": np.array([[0.5, -1.0], [2.0, 0.1]], np.float32), "X": FEEDS["X"]}
    assert_same(model, join_products, feeds, left)


BIASES = {  # c is [2], x is [3, 2], two is [2, 2]
    "a product and a bias": ("p = MatMul(x, two) y = Add(p, c)", ["Gemm"]),
    "a bias and a product": ("p = MatMul(x, two) y = Add(c, p)", ["Gemm"]),
    "a product that is read again": ("p = MatMul(x, two) q = Add(p, c) y = Mul(p, q)", ["MatMul", "Add", "Mul"]),
    "a product and a matrix": ("p = MatMul(x, two) y = Add(p, x)", ["MatMul", "Add"]),
    "a bias of one entry": (
        "e = ReduceSum<keepdims=1>(c) p = MatMul(x, two) y = Add(p, e)",
        ["ReduceSum", "MatMul", "Add"],
    ),
    "a sum of no product": ("y = Add(x, c)", ["Add"]),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_added_in_its_product(name):
    body, left = BIASES[name]
    two = "two = Constant<value = float[2,2] {1, 2, -1, 0.5}>()"
    model = epoch_text("float[2]", f"{two} {body} d = Neg(c) loss = ReduceMean<keepdims=0>(y)")
    assert_same(model, join_products, FEEDS, [*left, "Neg", "ReduceMean"])


STARTS = {  # g is the gradient of the loss's seed
    "every gradient times the rate": ("u = Mul(g, r) d = Add(c, u)", ["Mul", "ReduceSum", "Add", "ReduceMean"]),
    "the rate times the gradient": ("u = Mul(r, g) d = Add(c, u)", ["Mul", "ReduceSum", "Add", "ReduceMean"]),
    "a gradient that is read before": (
        "a = Abs(g) u = Mul(g, r) e = Add(a, u) d = Add(c, e)",
        ["Mul", "ReduceSum", "Abs", "Mul", "Add", "Add", "ReduceMean"],
    ),
    "a gradient times something else": (
        "u = Mul(g, c) d = Mul(u, r)",
        ["Mul", "ReduceSum", "Mul", "Mul", "ReduceMean"],
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_backward_pass_starts_from_the_rate_where_that_is_all_that_is_done_with_gradients(name):
    body, left = STARTS[name]
    first = "zero = Constant<value_ints=[0]>() m = Mul(x, seed) g = ReduceSum<keepdims=0>(m, zero)"
    model = epoch_text("float[2]", f"{first} {body} loss = ReduceMean<keepdims=0>(x)", rate=True)
    [scan] = model.graph.node
    [inner] = [a.g for a in scan.attribute if a.HasField("g")]
    inner.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.float32), "seed"))
    rate = {"rate": np.linspace(-0.1, -0.5, 5).astype(np.float32)}
    assert_same(model, start_at_rate, {**FEEDS, **rate}, left, seed="seed", gradients=("g",))


SOFTMAXES = {
    "the last axis": ("l = LogSoftmax(x) p = Exp(l) t = Mul(p, l)", ["LogSoftmax", "Softmax", "Mul"]),
    "another axis": ("l = LogSoftmax<axis=0>(x) p = Exp(l) t = Mul(p, l)", ["LogSoftmax", "Softmax", "Mul"]),
    "exponentials of something else": ("l = Exp(x) p = Exp(l) t = Mul(p, l)", ["Exp", "Exp", "Mul"]),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_the_exponential_of_a_logarithm_of_softmax_is_softmax(name):
    body, left = SOFTMAXES[name]
    step = f"{body} loss = ReduceMean<keepdims=0>(t) d = Add(c, loss)"
    assert_same(epoch_text("float[2]", step), share_exponentials, FEEDS, [*left, "ReduceMean", "Add"])


@pytest.mark.parametrize("one", PASSES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam"])
def test_training_without_a_pass_comes_to_the_same_weights(monkeypatch, optimizer, one):
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,1] y)
      <float[2,3] w = {1, 2, 0.5, -1, 0.3, 0.1}, float[3] b = {0.1, 0, 0.2}, float[3,1] u = {0.2, -0.4, 0.7}>
      { h = Gemm(X, w, b) r = Tanh(h) y = Gemm(r, u) }"""
    source = derive(add_loss(convert(onnx.parser.parse_model(text)), AddLossConfig(LOSSES["l2"]())))
    rng = np.random.default_rng(0)
    data = Data(Rows({"X": rng.normal(size=(50, 2))}, rng.normal(size=(50, 1))))
    config = TrainConfig(OPTIMIZERS[optimizer](), epochs=3, batch_size=8)
    whole = train(source, config, data=data).tensors
    monkeypatch.setattr(passes, "PASSES", tuple(other for other in PASSES if other is not one))
    without = train(source, config, data=data).tensors
    for name, array in whole.items():
        np.testing.assert_allclose(without[name], array, rtol=1e-5, atol=1e-7, err_msg=name)
