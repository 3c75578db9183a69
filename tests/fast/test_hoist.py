"""What a step finds ready, and what is made of what it leaves: the same bytes from fewer nodes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from stages.train.updates import STEPWISE

from ortpipe.data.rows import Data, Rows
from ortpipe.fast import hoist as hoisting
from ortpipe.fast import passes
from ortpipe.fast.epoch import EpochGraph
from ortpipe.fast.hoist import hoist, sink
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.protos import all_nodes
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train


def in_the_step(model):
    [scan] = [n for n in model.graph.node if n.op_type == "Scan"]
    [body] = [a.g for a in scan.attribute if a.HasField("g")]
    return [n.op_type for n in all_nodes(body) if n.op_type != "Constant"]


def scan(body, inputs, carried="float[2] p", scanned="float[s] rate, float[s,3,2] X, int64[s,3,1] label"):
    """Return Scan(p; what is scanned) → (p_end, losses), whose body is a text."""
    names = [part.split()[-1] for part in scanned.split(", ")]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g ({carried}, {scanned}) => (float[2] end, float[s] losses) {{
        end, losses = Scan<num_scan_inputs={len(names)},
          body = b ({inputs}) => (float[2] after, float loss) {{ {body} }}>(p, {", ".join(names)}) }}"""
    )
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


INPUTS = "float[2] q, float r, float[3,2] x, int64[3,1] y"
FEEDS = {
    "p": np.array([0.3, -0.2], np.float32),
    "rate": np.linspace(0.1, 0.5, 4).astype(np.float32),
    "X": np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32),
    "label": np.random.default_rng(1).integers(0, 2, (4, 3, 1)),
}
BODIES = {
    "a scalar chain": (
        "two = Constant<value = float {2}>() a = Neg(r) b = Div(a, two) s = Mul(q, b) after = Add(q, s)"
        " m = Mul(x, q) loss = ReduceSum<keepdims=0>(m)",
        ["Mul", "Add", "Mul", "ReduceSum"],
    ),
    "one-hot labels times a rate": (
        "k = Constant<value_ints=[0, 1]>() t = Equal(y, k) f = Cast<to=1>(t) w = Mul(f, r) m = Mul(w, x)"
        " after = Add(q, r) n = Mul(m, q) loss = ReduceSum<keepdims=0>(n)",
        ["Add", "Mul", "ReduceSum"],
    ),
    "a sum over columns": (
        "one = Constant<value_ints=[1]>() m = Mul(x, x) z = ReduceSum<keepdims=1>(m, one) v = Mul(z, q)"
        " loss = ReduceSum<keepdims=0>(v) after = Identity(q)",
        ["Mul", "ReduceSum", "Identity"],
    ),
    "constants alone": (
        "n = Constant<value_int=3>() f = Cast<to=1>(n) h = Reciprocal(f) after = Mul(q, h) m = Mul(x, after)"
        " loss = ReduceSum<keepdims=0>(m)",
        ["Mul", "Mul", "ReduceSum"],
    ),
    "what is larger than the rows stays": (
        "k = Constant<value = int64[9] {0, 1, 2, 3, 4, 5, 6, 7, 8}>() t = Equal(y, k) f = Cast<to=1>(t)"
        " loss = ReduceSum<keepdims=0>(f) after = Add(q, r)",
        ["Equal", "Cast", "ReduceSum", "Add"],
    ),
    "what depends on the parameters stays": (
        "a = Mul(q, r) after = Sub(q, a) m = Mul(x, after) loss = ReduceSum<keepdims=0>(m)",
        ["Mul", "Sub", "Mul", "ReduceSum"],
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_steps_lose_what_is_done_ahead_and_keep_their_bytes(name):
    body, left = BODIES[name]
    model = scan(body, INPUTS)
    epoch = EpochGraph(ir.from_proto(model))
    hoist(epoch)
    made = finish(epoch.model)
    assert in_the_step(made) == left
    onnx.checker.check_model(made, full_check=True)
    for a, b in zip(Session(made).run(FEEDS), Session(model).run(FEEDS), strict=True):
        assert a.tobytes() == b.tobytes()


MEAN = "loss = ReduceMean<keepdims=0>(s)"
EIGHT = "float[s] rate, float[s,8,2] X, int64[s,8,1] label"
EIGHT_IN_STEP = "float[2] q, float r, float[8,2] x, int64[8,1] y"
ROWS = {
    **FEEDS,
    "X": np.random.default_rng(2).normal(size=(4, 8, 2)).astype(np.float32),
    "label": np.random.default_rng(3).integers(0, 2, (4, 8, 1)),
}
SUNK = {  # what the step does → the nodes that are left
    "a squared error": (
        "d = Sub(x, q) s = Mul(d, d) after = ReduceSum<keepdims=0>(d, zero) " + MEAN,
        ["Sub", "ReduceSum"],
    ),
    "a log-likelihood": (
        "l = LogSoftmax(x) f = Cast<to=1>(y) s = Mul(f, l) e = Exp(l) after = ReduceSum<keepdims=0>(e, zero) " + MEAN,
        ["LogSoftmax", "Exp", "ReduceSum"],
    ),
    "times a number, the other way around": (
        "d = Sub(x, q) s = Mul(d, d) m = ReduceSum<keepdims=0>(s) loss = Mul(ten, m)"
        " after = ReduceSum<keepdims=0>(d, zero)",
        ["Sub", "ReduceSum"],
    ),
    "what is larger than the rows stays": (
        "w = Concat<axis=0>(x, x) v = Mul(w, q) s = Mul(v, v) m = ReduceMean<keepdims=0>(s) loss = Mul(m, ten)"
        " after = Add(q, m)",
        ["Concat", "Mul", "Mul", "ReduceMean", "Add"],
    ),
    "a mean that is read again": (
        "s = Mul(x, q) m = ReduceMean<keepdims=0>(s) loss = Mul(m, r) after = Add(q, m)",
        ["Mul", "ReduceMean", "Add"],
    ),
    "of two values": (
        "a = Exp(q) b = Abs(x) c = Mul(b, a) e = Add(b, a) s = Mul(c, e) after = ReduceSum<keepdims=0>(e, zero) "
        + MEAN,
        ["Exp", "Abs", "Mul", "Add", "Mul", "ReduceSum"],
    ),
    "of a parameter": ("after = Neg(q) loss = ReduceMean<keepdims=0>(q)", ["Neg", "ReduceMean"]),
    "of fewer dimensions": (
        "d = Sub(x, q) t = Mul(d, r) s = Mul(t, d) after = ReduceSum<keepdims=0>(d, zero) " + MEAN,
        ["Sub", "ReduceSum"],
    ),
    "what does not begin where it would in the step stays": (
        "l = ReduceSum<keepdims=1>(x, zero) d = Sub(l, q) s = Mul(d, d) after = Add(q, r) m = ReduceMean<keepdims=0>(s)"
        " loss = Mul(m, ten)",
        ["ReduceSum", "Sub", "Mul", "Add", "ReduceMean"],
    ),
    "over some axes": (
        "d = Sub(x, q) s = Mul(d, d) e = ReduceSum<keepdims=1>(s, zero) loss = ReduceMean<keepdims=0>(e)"
        " after = ReduceSum<keepdims=0>(d, zero)",
        ["Sub", "Mul", "ReduceSum", "ReduceMean", "ReduceSum"],
    ),
}


def sunk(body):
    """Return the model of a step's text, and what `sink` makes of it."""
    constants = "zero = Constant<value_ints=[0]>() ten = Constant<value_float=10.0>()"
    model = scan(f"{constants} {body}", EIGHT_IN_STEP, scanned=EIGHT)
    epoch = EpochGraph(ir.from_proto(model))
    sink(epoch)
    return model, finish(epoch.model)


@pytest.mark.parametrize("name", SUNK)
@pytest.mark.parametrize("steps", [1, 4])
def test_losses_are_made_of_what_steps_leave_and_keep_their_bytes(name, steps):
    body, left = SUNK[name]
    model, faster = sunk(body)
    assert in_the_step(faster) == left
    onnx.checker.check_model(faster, full_check=True)
    assert [output.name for output in faster.graph.output] == ["end", "losses"]
    feeds = {name: array if name == "p" else array[:steps] for name, array in ROWS.items()}
    for a, b in zip(Session(faster).run(feeds), Session(model).run(feeds), strict=True):
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def test_large_values_stay_in_the_step(monkeypatch):
    monkeypatch.setattr(THRESHOLDS, "sunk_elements", 15)
    _, faster = sunk(SUNK["a squared error"][0])
    assert in_the_step(faster) == ["Sub", "Mul", "ReduceSum", "ReduceMean"]


def test_what_is_carried_is_not_handed_out(monkeypatch):
    monkeypatch.setattr(hoisting, "ALIGNED", 8)
    _, faster = sunk(SUNK["of a parameter"][0])
    assert in_the_step(faster) == ["Neg", "ReduceMean"]


def trained(monkeypatch, source, config, data, outside):
    with monkeypatch.context() as patch:
        if not outside:
            patch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one not in (hoist, sink)))
        return train(source, config, data=data)


LOSS_STEPS = [("cross_entropy", 1), ("cross_entropy", 2), ("l2", 1), ("l2", 3)]
WAYS = [*itertools.product(("sgd", "adam"), LOSS_STEPS, (False, True)), *((o, LOSS_STEPS[1], True) for o in STEPWISE)]


@pytest.mark.parametrize(
    ("optimizer", "loss", "accumulate", "weighted"), dict.fromkeys((o, *steps, w) for o, steps, w in WAYS)
)
def test_training_gives_the_bytes_that_it_gives_without(monkeypatch, optimizer, loss, accumulate, weighted):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 4)), rng.integers(0, 3, 50) if loss == "cross_entropy" else rng.normal(size=(50, 3))
    data = Data(Rows({"X": X}, y, rng.uniform(0.5, 2, 50) if weighted else None))
    last = "Softmax<axis=1>" if loss == "cross_entropy" else "Identity"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
      g (float[N,4] X) => (float[N,3] y)
      <float[4,3] w = {{{", ".join(map(str, np.arange(12) / 10))}}}, float[3] b = {{1, 2, 3}}>
      {{ h = Gemm(X, w, b) y = {last}(h) }}""")
    source = derive(add_loss(convert(model, data=data), AddLossConfig(LOSSES[loss](), sample_weight=weighted)))
    config = TrainConfig(OPTIMIZERS[optimizer](), epochs=2, batch_size=8, accumulate=accumulate, weight_decay=0.1)
    with_it, without = (trained(monkeypatch, source, config, data, outside) for outside in (True, False))
    assert with_it.digest() == without.digest()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_mean_over_some_axes_gives_one_loss_at_every_opset(weighted):
    """The oracle of the first loss is NumPy: the mean over rows of weight · the mean over a row's elements."""
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(2, 8, 2, 2, 3, 3)).astype(np.float32)
    weight = rng.uniform(0.5, 2, 8) if weighted else None
    data, losses = Data(Rows({"x": x}, label, weight)), []
    for opset in (16, 17, 18, 21):
        text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[N,2,2,3,3] x) => (float[N,2,2,3,3] y)
          <float[2,2,1,1,1] w = {{1, 0.5, -0.5, 2}}> {{ y = Conv(x, w) }}"""
        model = convert(onnx.parser.parse_model(text), data=data)
        loss = add_loss(model, AddLossConfig(LOSSES["l2"](), sample_weight=weighted))
        trained = train(derive(loss), TrainConfig(OPTIMIZERS["sgd"](), epochs=2, batch_size=8), data=data)
        losses.append(trained.tensors["losses/train"].tolist())
    predicted = np.einsum("ncijk,dc->ndijk", x, np.array([[1, 0.5], [-0.5, 2]]))
    errors = ((predicted - label) ** 2).sum(1).mean((1, 2, 3))
    assert losses[0][0] == pytest.approx(np.mean(errors if weight is None else errors * weight), rel=1e-5)
    assert losses == losses[:1] * 4
