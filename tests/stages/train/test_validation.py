"""A metric of the catalogue is watched on the validation rows: scikit-learn's own number of that epoch's weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn import metrics
from sklearn.linear_model import LinearRegression, LogisticRegression

from ortpipe.artifact import Facts, in_folder
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, EvaluateError, TrainError
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import keep_outputs, set_initializers
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import CheckpointConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.early import check
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.outcome import trained_loss
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Checkpoint, Epoch
from ortpipe.stages.train.validation import check_monitor

# what is watched: its rows, its loss, scikit-learn's number from labels, the model's output and row weights
WATCHED = {
    "r2": ("diabetes", "l2", lambda y, p, w: metrics.r2_score(y, p, sample_weight=w)),
    "mean_absolute_error": ("diabetes", "l2", lambda y, p, w: metrics.mean_absolute_error(y, p, sample_weight=w)),
    "accuracy": ("iris", "cross_entropy", lambda y, p, w: metrics.accuracy_score(y, p.argmax(1), sample_weight=w)),
    "log_loss": ("iris", "cross_entropy", lambda y, p, w: metrics.log_loss(y, p, labels=[0, 1, 2], sample_weight=w)),
    "roc_auc": ("breast_cancer", "log", lambda y, p, w: metrics.roc_auc_score(y, p[:, -1], sample_weight=w)),
}
ESTIMATORS = {
    "diabetes": LinearRegression(),
    "iris": LogisticRegression(max_iter=3, tol=1e3),
    "breast_cancer": LogisticRegression(max_iter=3, tol=1e3),
}


@pytest.fixture
def case(request):
    def make(rows, loss, weighted=False):
        data = request.getfixturevalue(rows)
        parts = [data.train, data.validation or data.test, data.test]
        spread = data.train.inputs["X"].std(axis=0)
        parts = [dataclasses.replace(p, inputs={"X": p.inputs["X"] / spread}) for p in parts]
        if weighted:
            parts = [dataclasses.replace(p, sample_weight=np.linspace(0.2, 2, len(p))) for p in parts]
        data = Data(*parts)
        forward = convert(ESTIMATORS[rows], data=data)
        return derive(add_loss(forward, AddLossConfig(LOSSES[loss](), "mean", weighted))), data

    return make


def configured(monitor, *, lr=0.01, schedule="constant", settings=None, patience=None, **rest):
    stop = EarlyStopConfig(patience, monitor=monitor)
    given = {"epochs": 6, "init": "random", "checkpoint": CheckpointConfig(epochs=1), **rest}
    return TrainConfig(OPTIMIZERS["adam"](lr), SCHEDULES[schedule](**(settings or {})), early_stop=stop, **given)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("monitor", WATCHED)
def test_what_is_watched_is_scikit_learns_number_of_each_epochs_weights(case, monitor, weighted):
    rows, loss, published = WATCHED[monitor]
    source, data = case(rows, loss, weighted)
    told = []
    result = train(source, configured(monitor), data=data, report=told.append)
    part, facts = data.validation, source.facts
    y = part.label if facts.classes is None else np.searchsorted(facts.classes, part.label)
    expected = []
    for checkpoint in [report for report in told if isinstance(report, Checkpoint)]:
        forward = source.ir_model()
        keep_outputs(forward, facts.outputs)
        set_initializers(forward, in_folder("parameter", checkpoint.tensors))
        model = finish(forward)
        [output] = Session(model).run({"X": part.inputs["X"].astype(np.float32)}, [facts.prediction])
        expected.append(published(y, output, part.sample_weight))
    np.testing.assert_allclose(result.tensors[f"monitor/{monitor}"], expected, rtol=1e-5)
    assert len(set(expected)) > 1
    assert [e.metrics[monitor] for e in told if isinstance(e, Epoch)] == result.tensors[f"monitor/{monitor}"].tolist()


@pytest.mark.parametrize(("monitor", "best"), [("accuracy", np.argmax), ("log_loss", np.argmin)])
def test_training_stops_when_it_is_no_longer_better_and_keeps_the_best_weights(case, monitor, best):
    source, data = case("iris", "cross_entropy")
    config = configured(monitor, lr=0.3, patience=3, epochs=80)
    result = train(source, config, data=data)
    seen = result.tensors[f"monitor/{monitor}"]
    at = int(best(seen))  # the first of the best
    assert len(seen) == at + 1 + 3 < 80
    shorter = train(source, dataclasses.replace(config, epochs=at + 1), data=data)
    for name, value in in_folder("parameter", shorter.tensors).items():
        np.testing.assert_array_equal(result.tensors[f"parameter/{name}"], value)


@pytest.mark.parametrize(
    ("schedule", "settings", "by"),
    [
        ("reduce_on_plateau", {"by": 0.5, "patience": 0, "threshold": 0.0}, 0.5),
        ("adaptive", {"patience": 1, "tolerance": 1e-9}, 0.2),
    ],
)
def test_schedules_lower_the_rate_where_what_is_watched_is_no_better_than_before(case, schedule, settings, by):
    source, data = case("iris", "cross_entropy")
    config = configured("accuracy", lr=0.05, schedule=schedule, settings=settings, batch_size=16, epochs=12)
    tensors = train(source, config, data=data).tensors
    rates = tensors["losses/rate"].reshape(12, -1)[:, 0]
    seen, factor, expected = tensors["monitor/accuracy"], 1.0, []
    for epoch in range(12):
        if epoch >= 2 and seen[epoch - 1] <= max(seen[: epoch - 1]):
            factor *= by
        expected.append(0.05 * factor)
    assert 1 < len(set(expected)) < 11
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "reduce_on_plateau", "adaptive"])
def test_training_that_continues_gives_the_same_bytes(case, schedule):
    source, data = case("iris", "cross_entropy")
    settings = {"patience": 1} if schedule != "constant" else {}
    config = configured(
        "accuracy", lr=0.1, schedule=schedule, settings=settings, patience=3, epochs=30, validate_every=2
    )
    told = []
    once = train(source, config, data=data, report=told.append)
    kept = [report for report in told if isinstance(report, Checkpoint)]
    assert len(once.tensors["losses/train"]) < 30
    for checkpoint in kept[1::3]:  # before and after a validation
        assert train(source, config, data=data, start=checkpoint).digest() == once.digest()
    other = dataclasses.replace(config, early_stop=EarlyStopConfig(3, monitor="log_loss"))
    with pytest.raises(TrainError, match="same model, data and train settings"):
        train(source, other, data=data, start=kept[0])


def test_training_that_goes_on_from_a_result_without_it_knows_it_from_there_on(case):
    source, data = case("iris", "cross_entropy")
    first = train(source, configured("loss", epochs=2), data=data)
    assert [name for name in first.tensors if name.startswith("monitor/")] == []
    result = train(source, configured("accuracy", epochs=5), data=data, start=first.tensors)
    assert np.isnan(result.tensors["monitor/accuracy"]).tolist() == [True, True, False, False, False]


def test_what_cannot_be_watched_is_refused_before_training(case):
    source, data = case("breast_cancer", "log")
    benign = data.test.take(np.flatnonzero(data.test.label == "benign"))
    for given, monitor, words in (
        (data, "r2", "r2 for a binary model"),
        (Data(data.train, None, data.test), "accuracy", "accuracy without validation rows"),
        (Data(data.train, benign, data.test), "roc_auc", "roc_auc = nan"),
    ):
        for refuse in (
            lambda d, c: check(source.facts, c, data=d),
            lambda d, c: train(source, c, data=d),
        ):
            with pytest.raises((EvaluateError, TrainError), match=words):
                refuse(given, configured(monitor))
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        EarlyStopConfig(monitor="acuracy")


@pytest.mark.parametrize("every", [1, 4])
def test_lbfgs_is_watched_and_stopped_like_the_others(case, every):
    source, data = case("iris", "cross_entropy")
    stop = EarlyStopConfig(2, monitor="accuracy")
    config = TrainConfig(OPTIMIZERS["lbfgs"](), epochs=60, init="random", early_stop=stop, validate_every=every)
    told = []
    result = train(source, config, data=data, report=told.append)
    seen = result.tensors["monitor/accuracy"]
    due = np.arange(1, len(seen) + 1) % every == 0
    due[-1] = True
    assert len(seen) < 60
    np.testing.assert_array_equal(np.isnan(seen), ~due)
    part, facts = data.validation, source.facts
    [output] = Session(result.model).run({"X": part.inputs["X"].astype(np.float32)}, [facts.prediction])
    y = np.searchsorted(facts.classes, part.label)
    assert metrics.accuracy_score(y, output.argmax(1)) == np.nanmax(seen)


def test_the_loss_of_what_was_trained_is_that_of_the_epoch_whose_weights_were_kept() -> None:
    losses = {"losses/train": np.array([3.0, 2.0, 1.0])}
    assert trained_loss(losses, EarlyStopConfig()) == 1.0
    losses["losses/validation"] = np.array([5.0, 4.0, 6.0])
    losses["monitor/accuracy"] = np.array([0.9, 0.8, 0.7])
    assert trained_loss(losses, EarlyStopConfig()) == 6.0  # nothing is restored
    assert trained_loss(losses, EarlyStopConfig(patience=5)) == 4.0
    assert trained_loss(losses, EarlyStopConfig(patience=5, monitor="accuracy")) == 5.0
    losses["losses/validation"] = losses["monitor/accuracy"] = np.array([np.nan, 0.5, 0.6])
    assert trained_loss(losses, EarlyStopConfig(patience=5)) == 0.5


def test_a_deviance_is_watched_of_counts_some_of_which_are_zero():
    counts = Rows({"X": np.zeros((3, 1))}, np.array([0.0, 1.0, 2.0]))
    facts = Facts("regression", ("X",), ("y",), "y", ("w",))
    check_monitor("mean_poisson_deviance", facts, Data(counts, counts))
    with pytest.raises(EvaluateError, match="strictly positive"):
        check_monitor("mean_gamma_deviance", facts, Data(counts, counts))
