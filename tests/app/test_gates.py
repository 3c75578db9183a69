"""A model is registered only if it meets its requirements and is better than the champion, on validation rows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import yaml
from mlflow import MlflowClient
from registered import MODEL, ROWS, Registered
from sqlalchemy import event
from sqlalchemy.engine import Engine

from ortpipe.app.commands.rollback import run as rollback
from ortpipe.app.compose import Composition
from ortpipe.app.gates import GateError
from ortpipe.app.run.record import FINISHED, RunRecord
from ortpipe.app.schema import check
from ortpipe.app.tracking import Mlflow
from ortpipe.app.tracking.client import close_databases
from ortpipe.app.tracking.model import register
from ortpipe.errors import ConfigError, DataError, EvaluateError, TrackingError
from ortpipe.metrics.predictions import Compared
from ortpipe.stages.evaluate import gates
from ortpipe.stages.evaluate.gates import Scored, paired

GATED = ("recorder.register=churn", "recorder.only_if_better=roc_auc")


def required(registered: Registered, limits: dict[str, str]) -> tuple[str, str]:
    """Write requirements into a config file, because names with dots cannot be overrides; return the arguments."""
    file = registered.folder / "conf" / "evaluate" / "limits.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.dump({"defaults": ["default"], "require": limits}, sort_keys=False))
    return "evaluate=limits", f"hydra.searchpath=['file://{file.parents[1]}']"


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "DRAWS", 40)


def champion(registered: Registered) -> str:
    return str(MlflowClient(registered.uri).get_model_version_by_alias("churn", "champion").version)


def entries(rng: np.random.Generator, noise: float, truth: np.ndarray) -> Scored:
    score = np.clip(truth + rng.normal(0, noise, len(truth)), 0, 1)
    probability = np.stack([1 - score, score], 1)
    return Scored({"": Compared(truth, (score > 0.5).astype(int), probability, None)}, len(truth))


def test_the_interval_is_that_of_scipys_paired_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.stats import bootstrap

    monkeypatch.setattr(gates, "DRAWS", 200)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 300)
    new, old = entries(rng, 0.5, truth), entries(rng, 0.8, truth)
    result = paired(new, old, "accuracy", seed=0)
    a, b = (scored.entries[""].label == truth for scored in (new, old))
    expected = bootstrap(
        (a, b), lambda a, b: a.mean() - b.mean(), paired=True, method="percentile", n_resamples=200, vectorized=False
    ).confidence_interval
    assert result["difference"] == pytest.approx(a.mean() - b.mean())
    np.testing.assert_allclose(result["interval"], expected, atol=0.03)
    assert paired(new, old, "accuracy", seed=0) == result
    assert paired(new, new, "roc_auc", seed=0)["interval"] == [0, 0]


def test_a_model_that_fails_is_recorded_and_not_registered(registered: Registered) -> None:
    before, name = champion(registered), "fails"
    limits = {"accuracy": ">= 0.1", "slice.w=a.accuracy": ">= 0.999", "log_loss": "<= 9"}
    with pytest.raises(GateError) as error:
        registered.run_with(*GATED, *required(registered, limits), rows=str(registered.folder / "old.csv"), name=name)
    assert error.value.code == 3
    assert str(error.value.got).startswith("fails slice.w=a.accuracy >= 0.999: it is 0.")
    record = RunRecord.read(registered.folder / name)
    assert record.status == FINISHED
    assert [gate["passed"] for gate in record.gates.values()] == [True, False, True]
    assert record.gates["log_loss"]["value"] == pytest.approx(record.values["validation/log_loss"])
    assert record.champion == {}
    run = MlflowClient(registered.uri).get_run(record.mlflow)
    assert run.data.tags["ortpipe.gates"].startswith("failed; meets accuracy >= 0.1: it is 0.")
    assert run.info.status == "FINISHED"
    assert champion(registered) == before
    assert "fails slice.w=a.accuracy" in (registered.folder / name / "report.md").read_text(encoding="utf-8")


def test_the_alias_moves_to_a_better_model_only_and_one_command_moves_it_back(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, first = str(registered.folder / "old.csv"), champion(registered)
    better = registered.run_with(*GATED, "train.optimizer.lr=0.5", "train.epochs=6", rows=rows, name="better").record
    assert better.champion["passed"]
    assert better.champion["difference"] == pytest.approx(better.champion["value"] - better.champion["champion"])
    low, high = better.champion["interval"]
    assert low <= better.champion["difference"] <= high
    old = RunRecord.read(registered.run.folder)
    assert better.champion["champion"] == pytest.approx(old.values["validation/roc_auc"])  # the same rows
    second = champion(registered)
    assert second != first
    with pytest.raises(GateError, match=f"is not better than models:/churn/{second} on the same validation rows"):
        registered.run_with(*GATED, "recorder.margin=0.5", "seed=3", rows=rows, name="worse")
    assert champion(registered) == second
    assert len(MlflowClient(registered.uri).search_model_versions("name = 'churn'")) == 2
    capsys.readouterr()
    rollback(["churn", f"recorder.tracking_uri={registered.uri}"])
    assert capsys.readouterr().out == f"churn: version {first} is champion again (it was version {second})\n"
    assert champion(registered) == first
    with pytest.raises(TrackingError, match="replaced no version"):
        rollback(["churn", f"recorder.tracking_uri={registered.uri}"])
    with pytest.raises(TrackingError, match="must have a champion"):
        rollback(["other", f"recorder.tracking_uri={registered.uri}"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_write_leaves_exactly_one_champion(registered: Registered) -> None:
    client, first = MlflowClient(registered.uri), champion(registered)
    record = RunRecord.read(registered.run.folder)
    record.champion = {"version": f"models:/killed/{1}", "metric": "roc_auc", "passed": True}
    source = client.get_model_version("churn", first)
    client.create_registered_model("killed")
    client.create_model_version("killed", source.source, None)
    client.set_registered_model_alias("killed", "champion", "1")
    [model] = client.search_logged_models([client.get_run(source.run_id).info.experiment_id], "name = 'model'")[-1:]
    target, champions, writes = Mlflow(registered.uri, register="killed"), [], 0
    while champions[-1:] != ["finished"]:
        writes += 1
        close_databases()
        if (child := os.fork()) == 0:
            count = iter(range(writes))

            def kill(*_: object, count: Iterator[int] = count) -> None:
                if next(count, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)

            event.listen(Engine, "commit", kill)
            try:
                register(MlflowClient(registered.uri), target, model.model_id, record)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        aliases = client.get_registered_model("killed").aliases
        assert aliases in ({"champion": 1}, {"champion": 2})
        champions.append("finished" if os.WIFEXITED(status) else aliases["champion"])
    assert set(champions) == {1, "finished"}
    assert aliases == {"champion": 2}
    assert writes > 4


@pytest.mark.parametrize(
    ("limits", "settings", "message"),
    [
        ({"accuracy": "> 1"}, (), "A requirement must be >= or <= and a number."),
        ({"accuracy": ">= nan"}, (), "A requirement must be >= or <= and a number."),
        ({"acuracy": ">= 1"}, (), "A requirement must be of a metric"),
        ({"slice.accuracy": ">= 1"}, (), "A requirement must be of a metric"),
        ({"slice.w=a.acc": ">= 1"}, (), "A requirement must be of a metric"),
        ({"accuracy": ">= 1"}, ("data.split.validation=0",), "evaluate.require decides on validation rows"),
        ({}, ("recorder.only_if_better=acc", "recorder.register=churn"), "must be the name of a metric"),
        ({}, ("recorder.only_if_better=accuracy",), "needs a registered model"),
        ({}, ("recorder.margin=-1",), "recorder.margin"),
    ],
)
def test_a_gate_that_cannot_be_read_is_an_error(
    limits: dict[str, str], settings: tuple[str, ...], message: str
) -> None:
    values = Composition(("~experiment", *MODEL, *ROWS, "data.source.path=rows.csv", *settings)).values
    _, problems = check({**values, "evaluate": {**values["evaluate"], "require": limits}})
    assert message in "".join(map(str, problems))


@pytest.mark.parametrize(("name", "message"), [("r2", "r2 for a binary model"), ("slice.v=a.accuracy", "'v'")])
def test_a_gate_that_does_not_fit_is_an_error_before_training(registered: Registered, name: str, message: str) -> None:
    with pytest.raises((EvaluateError, ConfigError, DataError)) as error:
        registered.run_with(
            *required(registered, {name: ">= 0.5"}), rows=str(registered.folder / "old.csv"), name="unfit"
        )
    assert message in str(error.value)
    assert "train" not in [stage.name for stage in RunRecord.read(registered.folder / "unfit").stages]
