"""Epochs that are recorded while training goes on are those that the end would have recorded, and none comes twice."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from command import ortpipe
from mlflow import MlflowClient

from ortpipe.app.run.record import FINISHED, KILLED, RunRecord
from ortpipe.app.tracking import metrics
from ortpipe.app.tracking.mlflow_run import MlflowRun
from ortpipe.app.tracking.recorders import mlflow
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.artifact_folder import load_artifact
from ortpipe.pipeline.events import RunFinished, RunStarted, StageFinished, StageProgressed
from ortpipe.stages.train.training import Epoch


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
    monkeypatch.setattr(metrics, "MOST_EPOCHS", most)
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


@pytest.mark.parametrize("how", ["finishes", "is killed", "meets a full disk"])
def test_finished_stages_wait_for_the_next_second_and_none_is_left_out(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run, before, calls = tmp_path / "run", RunRecord.read(made), list[str]()
    shutil.copytree(made, run)
    state = RunRecord(run, "limited", before.tags)
    target = Mlflow(f"sqlite:///{tmp_path}/mlflow.db", artifacts=str(tmp_path / "mlflow"))
    recording = target(state, {})
    by_mlflow = MlflowClient.log_artifacts

    def log_artifacts(client: MlflowClient, run_id: str, folder: str, place: str) -> None:
        calls.append(place)
        if how == "meets a full disk" and place == "stages/3_penalty":
            client.log_artifact(run_id, f"{folder}/model.onnx", place)  # a part of it is there
            raise OSError("No space left on device")
        by_mlflow(client, run_id, folder, place)

    def finish(number: int) -> None:
        stage = before.stages[number - 1]
        state.stages.append(stage)
        artifact = load_artifact(run / "stages" / f"{number}_{stage.name}")
        recording(StageFinished(stage.name, number, artifact, 1.0, "key", {}, artifact.digest(), None, None))

    client, folders = MlflowClient(target.tracking_uri), before.stage_folders

    def recorded() -> list[str]:
        return [Path(item.path).name for item in client.list_artifacts(recording.run_id, "stages")]

    monkeypatch.setattr(MlflowClient, "log_artifacts", log_artifacts)
    monkeypatch.setattr(mlflow, "EVERY", 3600.0)
    recording(RunStarted(()))
    finish(1)
    finish(2)
    assert recorded() == []
    monkeypatch.setattr(mlflow, "EVERY", -1.0)
    finish(3)
    assert recorded() == folders[:3]
    monkeypatch.setattr(mlflow, "EVERY", 3600.0)
    finish(4)
    assert recorded() == folders[:3]
    if how == "is killed":
        assert client.get_run(recording.run_id).info.status == "RUNNING"
        state.end(KILLED, "killed")
        MlflowRun(target, state).push()  # as `ortpipe sync` does
        kept = folders[:4]
    else:
        finish(5)
        finish(6)
        state.end(FINISHED)
        recording(RunFinished(load_artifact(run / "stages" / folders[-1])))
        kept = folders
        assert calls[:6] == [f"stages/{folder}" for folder in folders]
    assert client.get_run(recording.run_id).info.status == state.status
    assert recorded() == kept
    place = Path(client.download_artifacts(recording.run_id, "stages"))
    for folder in kept:
        names = sorted(path.name for path in (run / "stages" / folder).iterdir())
        assert sorted(path.name for path in (place / folder).iterdir()) == names
        for name in names:
            assert (place / folder / name).read_bytes() == (run / "stages" / folder / name).read_bytes()
