"""A loss that is not finite is reported with the gradients of its step, found again and held against numpy's."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import onnx
import pytest
from stages.train.updates import STEPWISE

from ortpipe.artifact import in_folder
from ortpipe.data import batches
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvergenceError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

TEXT = """g (float[N,3] X) => (float[N,1] y)
 <float[3,2] w = {0.3, -0.2, 0.5, 1, 0.2, 0.1}, float[2] b = {0.1, -0.3}, float[2,1] u = {0.2, 0.7},
  float[1] c = {0.1}> { a = Gemm(X, w, b) h = Tanh(a) y = Gemm(h, u, c) }"""
DROPPED = """<ir_version: 10, opset_import: ["" : 21]>
 g (float[N,3] X) => (float[N,1] y) <float[3,2] w = {0.3, -0.2, 0.5, 1, 0.2, 0.1}, float[2,1] u = {0.1, 0.7}>
 { half = Constant<value_float=0.5>() on = Constant<value = bool {1}>()
   h = MatMul(X, w) d = Dropout(h, half, on) y = MatMul(d, u) }"""
COUNT, SIZE, FAR = 30, 4, 1e25  # a label whose square is no float32, while its gradients are


def rows_with_one_far_label(place, weighted=False):
    rng = np.random.default_rng(1)
    X, label = rng.normal(size=(COUNT, 3)), rng.normal(size=COUNT)
    label[place] = FAR
    return Rows({"X": X}, label, np.linspace(0.5, 2, COUNT) if weighted else None)


def norms_in(error):
    said = re.search(r"largest gradient norms (.*?);", str(error.value)).group(1)
    return {name: float(norm) for name, norm in (pair.split(" ") for pair in said.split(", "))}


def diverging(source, config, data):
    with pytest.raises(ConvergenceError) as error:
        train(source, config, data=data)
    return error


PLACES = (0, 17, COUNT - 1)  # in the first batch, in another one, in the partial one
WAYS = [
    *itertools.product(("sgd", "adam"), ("mean", "sum"), PLACES, (1, 2**25)),
    *((o, "mean", 17, 1) for o in STEPWISE),
]


@pytest.mark.parametrize(("optimizer", "reduction", "place", "chunk"), dict.fromkeys(WAYS))
def test_the_largest_gradients_are_numpys_at_the_step_that_diverged(
    from_text, monkeypatch, optimizer, reduction, place, chunk
):
    monkeypatch.setattr(batches, "CHUNK", chunk)
    source = derive(add_loss(from_text(TEXT), AddLossConfig(LOSSES["l2"](), reduction, sample_weight=True)))
    config = TrainConfig(OPTIMIZERS[optimizer](0.01), epochs=1, batch_size=SIZE, shuffle=False)
    rows = rows_with_one_far_label(place, weighted=True)
    error = diverging(source, config, Data(rows))
    bad = place // SIZE
    assert f"at step {bad + 1}" in str(error.value)
    values = {t.name: onnx.numpy_helper.to_array(t) for t in source.model.graph.initializer}
    if bad:  # the rows before it alone lead to the same parameters
        values |= in_folder("parameter", train(source, config, data=Data(rows.take(np.arange(bad * SIZE)))).tensors)
    batch = rows.take(np.arange(bad * SIZE, min((bad + 1) * SIZE, COUNT)))
    assert_largest(norms_in(error), gradients(values, batch, reduction))


def gradients(values, batch, reduction):
    weight = 1 if batch.sample_weight is None else batch.sample_weight.reshape(-1, 1)
    h = np.tanh(batch.inputs["X"] @ values["w"] + values["b"])
    dy = 2 * weight * (h @ values["u"] + values["c"] - batch.label.reshape(-1, 1))
    dy /= len(batch) if reduction == "mean" else 1
    da = dy @ values["u"].T * (1 - h**2)
    return {"w": batch.inputs["X"].T @ da, "b": da.sum(axis=0), "u": h.T @ dy, "c": dy.sum(axis=0)}


def assert_largest(got, expected):
    norms = {name: np.linalg.norm(gradient) for name, gradient in expected.items()}
    largest = sorted(norms, key=norms.__getitem__, reverse=True)[:3]
    assert list(got) == largest
    assert got == pytest.approx({name: norms[name] for name in largest}, rel=1e-4)


@pytest.mark.parametrize(
    "parts",
    [
        {"average": 0.9},
        {"accumulate": 2},
        {"accumulate": 2, "average": 0.5},
        {"clip": ClipConfig(norm=0.1)},
        {"weight_decay": 0.3, "factors": {"u": 2.0}},
    ],
)
def test_parts_around_the_optimizer_leave_the_gradients_those_of_the_weights_themselves(from_text, parts):
    source = derive(add_loss(from_text(TEXT), AddLossConfig(LOSSES["l2"]())))
    config = TrainConfig(OPTIMIZERS["adam"](0.05), epochs=1, batch_size=SIZE, shuffle=False, **parts)
    rows, several = rows_with_one_far_label(17), parts.get("accumulate", 1)
    error = diverging(source, config, Data(rows))
    first = 17 // (SIZE * several) * SIZE * several
    tensors = train(source, config, data=Data(rows.take(np.arange(first)))).tensors
    values = in_folder("parameter", tensors) | in_folder("optimizer/iterate", tensors)
    batches = [rows.take(np.arange(first + i * SIZE, first + (i + 1) * SIZE)) for i in range(several)]
    each = [gradients(values, batch, "mean") for batch in batches]
    assert_largest(norms_in(error), {name: np.mean([g[name] for g in each], axis=0) for name in each[0]})


def test_a_parameter_that_overflows_is_reported_with_the_gradients_of_the_last_step(from_text):
    source = derive(add_loss(from_text(TEXT), AddLossConfig(LOSSES["l2"](), "sum")))
    rows = rows_with_one_far_label(0)
    rows = dataclasses.replace(rows, label=np.where(rows.label == FAR, 1e15, rows.label)).take(np.arange(1))
    error = diverging(source, TrainConfig(OPTIMIZERS["sgd"](1e30), epochs=1), Data(rows))
    assert "is not finite after step 1" in str(error.value)
    assert norms_in(error)["c"] == pytest.approx(2e15, rel=1e-4)


def test_gradients_that_are_not_finite_come_first(from_text):
    text = """g (float[N,1] X) => (float[N,1] y) <float[1] far = {1}, float[1] near = {1}>
     { e = Exp(X) s = Mul(e, far) y = Add(s, near) }"""
    source = derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())))
    error = diverging(source, TrainConfig(epochs=1), Data(Rows({"X": np.array([[60.0]])}, np.zeros(1))))
    got = norms_in(error)
    assert list(got) == ["far", "near"]
    assert np.isinf(got["far"])
    assert got["near"] == pytest.approx(2 * np.exp(60), rel=1e-4)


def test_a_model_that_draws_is_taken_to_the_same_step_by_the_same_draws():
    rows = rows_with_one_far_label(17)
    model = onnx.parser.parse_model(DROPPED)
    source = derive(add_loss(convert(model, data=Data(rows)), AddLossConfig(LOSSES["l2"]())))
    config = TrainConfig(OPTIMIZERS["sgd"](0.01), epochs=1, batch_size=2, shuffle=False)
    error = diverging(source, config, Data(rows))
    before = in_folder("parameter", train(source, config, data=Data(rows.take(np.arange(16)))).tensors)
    h = rows.inputs["X"][17] @ before["w"]
    possible = [FAR * np.linalg.norm(2 * h * kept) for kept in itertools.product([0, 1], repeat=2)]
    assert min(abs(norms_in(error)["u"] / np.array(possible)[1:] - 1)) < 1e-4
