"""Epochs that are recorded while training goes on are those that the end would have recorded, and none comes twice."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from command import ortpipe
from mlflow import MlflowClient

from ortpipe.app.run.record import FINISHED, RunRecord
from ortpipe.app.tracking import metrics
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.artifact import load_artifact
from ortpipe.pipeline.events import RunFinished, StageFinished, StageProgressed
from ortpipe.stages.train.losses import Epoch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of six epochs, the last of which and every second are validated."""
    folder = tmp_path_factory.mktemp("made")
    settings = ("experiment=mlp_regression", "train.epochs=6", "train.validate_every=2", "recorder=none")
    done = ortpipe(*settings, f"hydra.run.dir={folder}/run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def epochs(made: Path) -> list[StageProgressed]:
    """Return what training told of its epochs."""
    found, told = load_artifact(made / "stages" / "5_train").tensors, []
    for number, loss in enumerate(found["losses/train"], start=1):
        validation = float(found["losses/validation"][number - 1]) if number % 2 == 0 else None
        told.append(StageProgressed("train", Epoch(number, 6, float(loss), validation, 0.1, number, number)))
    return told


@pytest.mark.parametrize(("most", "expected"), [(300, [1, 2, 3, 4]), (0, [])])
def test_slow_epochs_are_recorded_as_they_come_and_the_others_at_the_end(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, expected: list[int]
) -> None:
    monkeypatch.setattr(metrics, "EVERY", 0.0)
    monkeypatch.setattr(metrics, "MOST", most)
    shutil.copytree(made, tmp_path / "run")
    before = RunRecord.read(made)
    state = RunRecord(tmp_path / "run", "live", before.tags)
    target = Mlflow(f"sqlite:///{tmp_path}/mlflow.db", artifacts=str(tmp_path / "mlflow"))
    recording = target(state, {})
    for event in epochs(made)[:4]:
        recording(event)
    client = MlflowClient(target.tracking_uri)

    def steps(key: str) -> list[int]:
        return [point.step for point in client.get_metric_history(recording.run_id, key)]

    assert steps("loss/train") == expected
    assert steps("loss/validation") == [step for step in expected if step % 2 == 0]
    state.stages = [dataclasses.replace(stage, ended=state.started + 3_600_000) for stage in before.stages]
    state.end(FINISHED, at=state.started + 3_600_000)
    for number, stage in ((5, "train"), (6, "evaluate")):
        artifact = load_artifact(made / "stages" / f"{number}_{stage}")
        recording(StageFinished(stage, number, artifact, 1.0, "key", {}, artifact.digest(), None, None))
    recording(RunFinished(artifact))
    assert (steps("loss/train"), steps("loss/validation")) == ([1, 2, 3, 4, 5, 6], [2, 4, 6])
    assert len(steps("loss/step")) == len(load_artifact(made / "stages" / "5_train").tensors["losses/step"])
    history = client.get_metric_history(recording.run_id, "loss/train")
    assert [point.step for point in history if point.timestamp < state.ended] == expected  # type: ignore[operator]
    assert [p.value for p in history] == [e.report.loss for e in epochs(made)]  # type: ignore[attr-defined]


def test_epochs_wait_for_their_time() -> None:
    gathered, epoch = metrics.Epochs(), Epoch(1, 6, 0.5, None, 0.1, 1, 1)
    assert [gathered.due(epoch) for _ in range(3)] == [[], [], []]
    gathered._sent -= metrics.EVERY
    assert [epoch.number for _, epoch in gathered.due(dataclasses.replace(epoch, number=2))] == [1, 1, 1, 2]
    assert gathered.due("a checkpoint") == []
