"""Early stopping says which epoch was kept and why: in the record, for every way in which a training ends."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from ortpipe.artifact import in_folder
from ortpipe.data.rows import Data
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.figures import _losses
from ortpipe.stages.train.config import CheckpointConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.outcome import Kept, kept_epoch
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Checkpoint


@pytest.fixture(scope="module")
def flowers(iris):
    return iris


@pytest.fixture(scope="module")
def source(flowers):
    forward = convert(LogisticRegression(max_iter=3, tol=1e3), data=flowers)
    return derive(add_loss(forward, AddLossConfig(LOSSES["cross_entropy"](), "mean")))


def configured(patience, *, lr=0.5, **settings):
    stop = {k: settings.pop(k) for k in ("min_delta", "monitor") if k in settings}
    given = {"epochs": 60, "init": "random", "checkpoint": CheckpointConfig(epochs=1), **settings}
    return TrainConfig(OPTIMIZERS["adam"](lr), early_stop=EarlyStopConfig(patience, **stop), **given)


def said(result):
    record = result.facts.lineage[-1]
    return record.get("notes", []), record.get("early_stop")


def validated(data):
    return Data(data.train, data.test, data.test)


@pytest.mark.parametrize("every", [1, 3])
def test_a_training_that_stops_says_where_why_and_which_epoch_it_kept(source, flowers, every):
    result = train(source, configured(4, validate_every=every), data=validated(flowers))
    losses = result.tensors["losses/validation"]
    best = int(np.nanargmin(losses)) + 1
    assert len(losses) == best + 4 * every < 60
    value = f"{losses[best - 1]:.4g}"
    assert said(result) == (
        [
            f"stopped after epoch {len(losses)} of 60: validation loss did not improve for 4 validations; "
            f"kept epoch {best}, validation loss {value}"
        ],
        {"epoch": best, "value": losses[best - 1], "epochs": len(losses), "over": True},
    )


def test_a_metric_that_is_watched_is_named_with_its_weights_and_the_least_improvement(flowers):
    weighted = [
        dataclasses.replace(p, sample_weight=np.linspace(0.5, 2, len(p))) for p in (flowers.train, flowers.test)
    ]
    data = Data(weighted[0], weighted[1], weighted[1])
    forward = convert(LogisticRegression(max_iter=3, tol=1e3), data=data)
    derived = derive(add_loss(forward, AddLossConfig(LOSSES["cross_entropy"](), "mean", sample_weight=True)))
    result = train(derived, configured(3, monitor="accuracy", min_delta=0.01), data=data)
    [note], _ = said(result)
    assert "validation accuracy (weighted) did not improve by more than 0.01 for 3 validations" in note
    seen = result.tensors["monitor/accuracy"]
    assert note.endswith(f"validation accuracy (weighted) {seen.max():.4g}")


def test_a_training_that_runs_to_its_end_says_that_it_was_not_stopped(source, flowers):
    result = train(source, configured(5, lr=0.001, epochs=4), data=validated(flowers))
    value = f"{result.tensors['losses/validation'][-1]:.4g}"
    assert said(result)[0] == [f"not stopped early: 4 of 4 epochs ran; kept epoch 4, validation loss {value}"]


def test_without_validation_rows_the_last_weights_are_kept_and_said_so(source, flowers):
    result = train(source, configured(2, lr=1.5), data=Data(flowers.train, None, flowers.test))
    epochs = len(result.tensors["losses/train"])
    [note], record = said(result)
    assert epochs < 60
    assert record["epoch"] == record["epochs"] == epochs
    assert f"stopped after epoch {epochs} of 60: training loss did not improve for 2 epochs" in note
    assert note.endswith("(the last: without validation rows none is restored)")


def test_without_patience_nothing_is_said(source, flowers):
    assert said(train(source, configured(None, epochs=2), data=validated(flowers))) == ([], None)


def test_a_training_that_is_continued_says_and_gives_what_one_does_that_is_not(source, flowers):
    data, told = validated(flowers), []
    whole = train(source, configured(4), data=data, report=told.append)
    checkpoints = [report for report in told if isinstance(report, Checkpoint)]
    for checkpoint in (checkpoints[1], checkpoints[-1]):
        continued = train(source, configured(4), data=data, start=checkpoint)
        assert continued.digest() == whole.digest()
        assert said(continued) == said(whole)


def test_lbfgs_that_ends_before_its_first_validation_keeps_what_it_found(diabetes):
    forward = convert(LinearRegression(), data=diabetes)
    derived = derive(add_loss(forward, AddLossConfig(LOSSES["l2"](), "mean")))
    given = {"epochs": 40, "init": "random", "validate_every": 1000}
    config = TrainConfig(OPTIMIZERS["lbfgs"](), early_stop=EarlyStopConfig(3), **given)
    data = validated(diabetes)
    free = dataclasses.replace(config, early_stop=EarlyStopConfig())
    stopping, running = train(derived, config, data=data), train(derived, free, data=data)
    for name, array in in_folder("parameter", running.tensors).items():
        np.testing.assert_array_equal(stopping.tensors[f"parameter/{name}"], array)
    assert said(stopping)[1]["epoch"] == len(running.tensors["losses/train"])


def test_the_epoch_that_is_kept_is_marked_in_the_figure_of_the_losses(source, flowers):
    from matplotlib.figure import Figure

    for patience in (4, None):
        axes = Figure().subplots()
        result = train(source, configured(patience, epochs=30), data=validated(flowers))
        _losses(result, axes)
        marked = [line for line in axes.get_lines() if str(line.get_label()).startswith("kept")]
        expected = [] if patience is None else [[said(result)[1]["epoch"]] * 2]
        assert [list(line.get_xdata()) for line in marked] == expected


def test_the_epoch_kept_is_the_best_that_counted() -> None:
    losses = {"losses/train": np.ones(5), "losses/validation": np.array([3.0, np.nan, 2.0, 1.95, 2.5])}
    assert kept_epoch(losses, EarlyStopConfig(2, min_delta=0.1)) == Kept(3, 2.0, 5, True)
    assert kept_epoch(losses, EarlyStopConfig(9)) == Kept(4, 1.95, 5, False)
    assert kept_epoch(losses, EarlyStopConfig()) is None
