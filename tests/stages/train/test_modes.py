"""Layers that behave otherwise in training: batch normalization moves its statistics, dropout draws."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.graph.forms.modes import UNBIASED, VARIANCE, is_random, to_inference
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

NORMALIZED = """<ir_version: 10, opset_import: ["" : 21]>
 g (double[N,3] X) => (double[N,1] y)
 <double[3] scale = {1, 2, 0.5}, double[3] shift = {0.1, 0, -0.1}, double[3] mean = {0, 1, 0},
  double[3] var = {1, 1, 2}, double[3,1] w = {0.3, -0.2, 0.5}, double[1] b = {0.1}>
 { n, m, v = BatchNormalization<training_mode=1, momentum=0.75>(X, scale, shift, mean, var) y = Gemm(n, w, b) }"""
DROPPED = """<ir_version: 10, opset_import: ["" : 21]>
 g (float[N,3] X) => (float[N,1] y) <float[3,2] w = {0.3, -0.2, 0.5, 1, 0.2, 0.1}, float[2,1] u = {0.1, 0.7}>
 { half = Constant<value_float=0.5>() on = Constant<value = bool {1}>()
   h = MatMul(X, w) d = Dropout(h, half, on) y = MatMul(d, u) }"""


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal([1, -2, 3], [1, 2, 0.5], (40, 3))
    part = Rows({"X": X}, X.sum(axis=1, keepdims=True) + rng.normal(size=(40, 1)))
    return Data(part, part, part)


def trained(model, data, **options):
    loss = add_loss(convert(onnx.parser.parse_model(model), data=data), AddLossConfig(LOSSES["l2"](), "mean"))
    given = {"epochs": 2, "batch_size": 8, "shuffle": False, **options}
    return train(derive(loss), TrainConfig(OPTIMIZERS["sgd"](given.pop("lr", 0.01)), **given), data=data)


def test_running_statistics_move_by_every_batch(rows):
    result = trained(NORMALIZED, rows)
    mean, var = np.array([0.0, 1, 0]), np.array([1.0, 1, 2])
    for batch in np.concatenate([rows.train.inputs["X"]] * 2).reshape(10, 8, 3):
        mean, var = 0.75 * mean + 0.25 * batch.mean(axis=0), 0.75 * var + 0.25 * batch.var(axis=0)
    np.testing.assert_allclose(result.tensors["parameter/mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(result.tensors["parameter/var"], var, rtol=1e-12)
    assert result.facts.parameters == ("scale", "shift", "w", "b")  # moved, not learned


def test_a_layer_of_pytorch_moves_its_running_variance_by_that_of_n_less_1(rows):
    model = onnx.parser.parse_model(NORMALIZED)
    model.graph.node[0].metadata_props.add(key=VARIANCE, value=UNBIASED)
    loss = add_loss(convert(model, data=rows), AddLossConfig(LOSSES["l2"](), "mean"))
    result = train(derive(loss), TrainConfig(OPTIMIZERS["sgd"](0.01), epochs=2, batch_size=8, shuffle=False), data=rows)
    var = np.array([1.0, 1, 2])
    for batch in np.concatenate([rows.train.inputs["X"]] * 2).reshape(10, 8, 3):
        var = 0.75 * var + 0.25 * batch.var(axis=0, ddof=1)
    np.testing.assert_allclose(result.tensors["parameter/var"], var, rtol=1e-12)
    np.testing.assert_array_equal(result.tensors["initial/var"], [1, 1, 2])  # nothing was written over it


def test_the_trained_model_predicts_with_its_running_statistics(rows, run):
    result = trained(NORMALIZED, rows)
    s, t, mean, var, w, b = (result.tensors[f"parameter/{n}"] for n in ("scale", "shift", "mean", "var", "w", "b"))
    X = rows.test.inputs["X"]
    expected = ((X - mean) / np.sqrt(var + 1e-5) * s + t) @ w + b
    np.testing.assert_allclose(run(result.model, {"X": X})["y"], expected, rtol=1e-10)
    loss = ((rows.validation.label - expected) ** 2).mean()
    np.testing.assert_allclose(result.tensors["losses/validation"][-1], loss, rtol=1e-10)
    table = evaluate(result, data=rows).facts.metrics["r2"]
    assert table["trained"] > table["before"] == table["source"]


def test_a_layer_that_runs_twice_moves_its_statistics_twice(rows):
    twice = NORMALIZED.replace(
        "y = Gemm(n,",
        "k, p, q = BatchNormalization<training_mode=1, momentum=0.75>(n, scale, shift, mean, var) y = Gemm(k,",
    )
    result = trained(twice, rows, epochs=1, batch_size=40, lr=1e-9)
    X = rows.train.inputs["X"]
    once = 0.75 * np.array([0.0, 1, 0]) + 0.25 * X.mean(axis=0)
    np.testing.assert_allclose(  # a normalized value has the mean `shift`
        result.tensors["parameter/mean"], 0.75 * once + 0.25 * np.array([0.1, 0, -0.1]), atol=1e-7
    )


def test_dropout_draws_another_mask_in_every_step_and_the_same_ones_in_every_training(rows):
    one, other = (trained(DROPPED, rows, lr=1e-12, batch_size=7) for _ in range(2))
    losses = one.tensors["losses/step"]
    assert len(losses) == 12  # the last batch of an epoch has 5 rows
    assert len(set(losses[[0, 6]])) == len(set(losses[[5, 11]])) == 2  # the same rows, other masks
    assert one.digest() == other.digest()
    assert one.digest() != trained(DROPPED, rows, lr=1e-12, batch_size=7, seed=1).digest()


def test_nothing_is_dropped_where_the_model_predicts(rows, run):
    result = trained(DROPPED, rows)
    w, u = result.tensors["parameter/w"], result.tensors["parameter/u"]
    X = rows.test.inputs["X"].astype(np.float32)
    np.testing.assert_allclose(run(result.model, {"X": X})["y"], X @ w @ u, rtol=1e-5)
    assert not is_random(result.ir_model())


def test_a_model_without_such_layers_is_left_alone():
    model = ir.from_onnx_text(DROPPED.replace("Dropout(h, half, on)", "Relu(h)"))
    before = ir.to_proto(model)
    assert not to_inference(model)
    assert ir.to_proto(model) == before
