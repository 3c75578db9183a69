"""A stream goes through every stage and gives what the same rows in memory give."""

import dataclasses

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.npz import Npz
from ortpipe.data.stream import Stream
from ortpipe.errors import ConvergenceError, DataError, TrainError
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import CheckpointConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.early import check
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Checkpoint

PLAIN = TrainConfig(OPTIMIZERS["momentum"](0.002), epochs=3, batch_size=16, shuffle=False)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Let some hundred rows be many groups, pieces and windows."""
    monkeypatch.setattr("ortpipe.data.arrays.GROUP", 1500)
    monkeypatch.setattr("ortpipe.data.rows.PIECE", 1500)
    monkeypatch.setattr("ortpipe.data.pieces.PIECE", 1500)
    monkeypatch.setattr("ortpipe.data.stream.MIB", 80 * 50 / 64)  # a window of fifty rows


def parts(path, load_set, weighted=False):
    """Return the same data streamed and in memory, divided by an array of words."""
    x, y = load_set(return_X_y=True)
    part = np.random.default_rng(0).choice(["train", "validation", "test"], len(y), p=[0.6, 0.2, 0.2])
    weight = {"w": np.linspace(0.5, 2, len(y))} if weighted else {}
    np.savez(path / "rows.npz", X=x * 10, y=y, part=part, **weight)
    config = DataConfig(
        Npz(str(path / "rows.npz"), sample_weight="w" if weighted else None, stream=True), SplitConfig(column="part")
    )
    held = dataclasses.replace(config, source=dataclasses.replace(config.source, stream=False))
    return load(config), load(held)


def gradients(data, loss="l2", reduction="mean", weighted=False, source=None, terms=None):
    forward = convert(source or LinearRegression(), data=data)
    model = add_loss(forward, AddLossConfig(LOSSES[loss](), reduction, weighted))
    return derive(penalty(model, PenaltyConfig(terms or {})), DeriveConfig(check=True), data=data)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_unshuffled_rows_train_to_the_same_bytes_whether_they_stream_or_not(tmp_path, weighted, reduction):
    streamed, held = parts(tmp_path, load_diabetes, weighted)
    assert isinstance(streamed.train, Stream)
    config = dataclasses.replace(PLAIN, optimizer=OPTIMIZERS["sgd"](0.0001))
    results = []
    for data in (streamed, held):
        source = gradients(held, reduction=reduction, weighted=weighted)
        results.append(train(source, config, data=data).tensors)
    assert results[0].keys() == results[1].keys()
    for name, tensor in results[0].items():
        np.testing.assert_array_equal(tensor, results[1][name], name)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_penalty_counts_once_in_the_validation_loss_whatever_the_pieces(tmp_path, reduction):
    streamed, held = parts(tmp_path, load_diabetes)
    source = gradients(held, reduction=reduction, terms={"coefficient": {"l2": 30.0}})
    config = dataclasses.replace(PLAIN, optimizer=OPTIMIZERS["sgd"](1e-7))
    found, expected = (train(source, config, data=d).tensors["losses/validation"] for d in (streamed, held))
    without = train(gradients(held, reduction=reduction), config, data=held).tensors["losses/validation"]
    np.testing.assert_array_equal(found, expected)
    assert (expected > 1.05 * without).all()


def test_a_stream_is_fitted_checked_trained_and_evaluated_like_rows_in_memory(tmp_path):
    streamed, held = parts(tmp_path, load_iris)
    tables = []
    for data in (streamed, held):
        source = gradients(data, "cross_entropy", source=LogisticRegression(max_iter=1000))
        tables.append(evaluate(train(source, PLAIN, data=data), data=data).facts.metrics)
    assert tables[0] == tables[1]


def test_of_the_test_rows_so_many_count_as_asked(tmp_path):
    streamed, held = parts(tmp_path, load_diabetes)
    trained = train(gradients(held), PLAIN, data=held)
    whole = evaluate(trained, data=held).tensors["evaluation/label"]
    for data in (streamed, held):
        few = evaluate(trained, EvaluateConfig(rows=10), data=data).tensors["evaluation/label"]
        np.testing.assert_array_equal(few, whole[:: -(-len(whole) // 10)])


def test_a_fit_takes_a_sample_that_fits_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("ortpipe.data.stream.MIB", 80 * 100 / 64)
    streamed, held = parts(tmp_path, load_diabetes)
    sample = held.train.take(np.arange(0, len(held.train), -(-len(held.train) // 100)))
    expected = LinearRegression().fit(sample.inputs["X"], sample.label).coef_
    for data in (streamed, held):
        found = convert(LinearRegression(), data=data).tensors["source/coefficient"].ravel()
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_stopped_training_on_a_stream_continues_to_the_same_bytes(tmp_path):
    streamed, held = parts(tmp_path, load_diabetes)
    config = dataclasses.replace(PLAIN, shuffle=True, epochs=6, checkpoint=CheckpointConfig(epochs=2))
    source, told = gradients(held), []
    whole = train(source, config, data=streamed, report=told.append)
    kept = [report for report in told if isinstance(report, Checkpoint)]
    assert [checkpoint.epochs for checkpoint in kept] == [2, 4, 6]
    for checkpoint in kept:
        assert train(source, config, data=streamed, start=checkpoint).digest() == whole.digest()


def test_accumulated_updates_of_a_stream_are_those_of_memory(tmp_path):
    streamed, held = parts(tmp_path, load_diabetes)
    config = dataclasses.replace(PLAIN, accumulate=3)
    source = gradients(held)
    found, expected = (train(source, config, data=data).tensors["parameter/coefficient"] for data in (streamed, held))
    np.testing.assert_array_equal(found, expected)


def test_a_label_of_a_stream_that_is_no_class_is_refused_before_training(tmp_path):
    x, y = load_iris(return_X_y=True)
    streamed, _ = parts(tmp_path, load_iris)
    fitted = LogisticRegression(max_iter=1000).fit(x[y < 2], y[y < 2])
    with pytest.raises(DataError, match=r"class that the model knows(.|\n)*2"):
        check(convert(fitted).facts, PLAIN, data=streamed)


def test_training_on_a_stream_that_diverges_says_where(tmp_path):
    streamed, held = parts(tmp_path, load_diabetes)
    with pytest.raises(ConvergenceError, match="largest gradient norms"):
        train(gradients(held), dataclasses.replace(PLAIN, optimizer=OPTIMIZERS["sgd"](1e6)), data=streamed)


def test_rows_of_another_width_are_refused_before_training(tmp_path):
    _, held = parts(tmp_path, load_diabetes)
    streamed, _ = parts(tmp_path, load_iris)
    with pytest.raises(DataError, match=r"4 per row(.|\n)*Give 10"):
        train(gradients(held), PLAIN, data=streamed)


def test_a_metric_is_watched_on_validation_rows_that_stream(tmp_path, monkeypatch):
    streamed, held = parts(tmp_path, load_diabetes, weighted=True)
    config = dataclasses.replace(PLAIN, early_stop=EarlyStopConfig(monitor="r2"))
    source = gradients(held, weighted=True)
    whole, streamed_whole = (train(source, config, data=data).tensors["monitor/r2"] for data in (held, streamed))
    np.testing.assert_array_equal(whole, streamed_whole)
    monkeypatch.setattr("ortpipe.stages.train.validation.KEPT", 20)
    few, streamed_few = (train(source, config, data=data).tensors["monitor/r2"] for data in (held, streamed))
    np.testing.assert_array_equal(few, streamed_few)
    assert np.abs(few - whole).max() > 1e-3
    one = train(source, dataclasses.replace(config, epochs=1), data=held)  # its parameters are those of the only epoch
    every = slice(None, None, -(-len(held.validation) // 20))
    features, label, weight = (
        array[every] for array in (held.validation.inputs["X"], held.validation.label, held.validation.sample_weight)
    )
    prediction = Session(one.model).run({"X": features.astype(np.float32)}, [one.facts.prediction])[0]
    expected = r2_score(label, prediction, sample_weight=weight)
    assert one.tensors["monitor/r2"] == pytest.approx([expected], rel=1e-5)


def test_lbfgs_refuses_a_stream_before_any_work(tmp_path):
    streamed, held = parts(tmp_path, load_diabetes)
    source, config = gradients(held), TrainConfig(OPTIMIZERS["lbfgs"]())
    for refuse in (lambda: check(source.facts, config, data=streamed), lambda: train(source, config, data=streamed)):
        with pytest.raises(TrainError, match=r"all rows in memory(.|\n)*a stream of \d+ rows"):
            refuse()
