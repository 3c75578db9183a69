"""Recording afterwards: the record of a run's folder is the one that the run would have made itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from command import ROOT, Popen, ortpipe
from mlflow import MlflowClient
from mlflow.entities import Run

from ortpipe.app.commands.sync import run as sync
from ortpipe.errors import ConfigError, OrtpipeError, TrackingError

SMALL = ("experiment=linear_regression", "train.epochs=3")


def database(folder: Path) -> str:
    return f"sqlite:///{folder}/outputs/mlflow.db"


def runs(uri: str) -> list[Run]:
    client = MlflowClient(uri)
    return client.search_runs([e.experiment_id for e in client.search_experiments()])


def page(uri: str, run: Run) -> dict[str, object]:
    """Return all that MLflow holds of a run, but for its id and what says where its artifacts are."""
    client, files = MlflowClient(uri), {}

    def walk(path: str | None = None) -> None:
        for file in client.list_artifacts(run.info.run_id, path):
            if file.is_dir:
                walk(file.path)
            else:
                files[file.path] = file.file_size

    walk()
    assert run.outputs is not None
    models = [client.get_logged_model(output.model_id) for output in run.outputs.model_outputs]
    histories = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    return {
        "name": run.info.run_name,
        "times": (run.info.start_time, run.info.end_time),
        "status": run.info.status,
        "params": run.data.params,
        "tags": run.data.tags,
        "metrics": {k: [(m.step, m.value, m.timestamp) for m in values] for k, values in histories.items()},
        "artifacts": files,
        "models": [(m.name, m.status, sorted((x.key, x.value) for x in m.metrics)) for m in models],
    }


def entries(uri: str) -> dict[str, int]:
    """Return how many rows MLflow's tables have."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {name: connection.execute(f"select count(*) from {name}").fetchone()[0] for name in tables}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = tmp_path_factory.mktemp("live")
    done = ortpipe(*SMALL, cwd=world)
    assert done.returncode == 0, done.stderr
    return world


@pytest.fixture
def folder(live: Path) -> Path:
    [folder] = live.glob("outputs/runs/*/*")
    return folder


def test_a_record_made_afterwards_is_the_one_made_by_the_run_itself(live: Path, folder: Path, tmp_path: Path) -> None:
    sync([str(folder), f"recorder.tracking_uri={database(tmp_path)}", f"recorder.artifacts={tmp_path}/mlflow"])
    [afterwards], [itself] = runs(database(tmp_path)), runs(database(live))
    made = page(database(tmp_path), afterwards)
    assert made == page(database(live), itself)
    assert made["status"] == "FINISHED"
    assert len(made["metrics"]["loss/train"]) == 3  # type: ignore[index]


def test_what_is_recorded_is_not_recorded_again_even_where_the_folder_forgot(
    live: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = entries(database(live))
    [mine] = runs(database(live))
    sync([str(folder), str(folder)])
    (folder / "mlflow.json").unlink()
    sync([str(live / "outputs")])
    assert entries(database(live)) == before
    assert capsys.readouterr().out.count(f"{mine.info.run_id}  {folder}") == 3


def test_a_record_that_broke_off_in_its_middle_is_completed(live: Path, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    (copy / "mlflow.json").unlink()
    where = [f"recorder.tracking_uri={database(tmp_path)}", f"recorder.artifacts={tmp_path}/mlflow"]
    (tmp_path / "mlflow").write_text("a file where MLflow wants a folder")
    with pytest.raises(OrtpipeError, match="recorded"):
        sync([str(copy), *where])
    [half] = runs(database(tmp_path))
    assert half.data.params
    assert not half.data.metrics
    (tmp_path / "mlflow").unlink()
    sync([str(copy), *where])
    [whole], [itself] = runs(database(tmp_path)), runs(database(live))
    assert page(database(tmp_path), whole) == page(database(live), itself)


def test_runs_without_tracking_and_killed_ones_are_recorded_where_their_config_would_have(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ortpipe", *SMALL, "recorder=none", "train.epochs=1000000"]
    process = Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=-1, text=True)
    assert process.stderr is not None
    while "[5/6] train" not in (line := process.stderr.readline()):
        assert line, "it ended before it trained"
    [folder] = tmp_path.glob("outputs/runs/*/*")
    with pytest.raises(TrackingError, match=f"process {process.pid} on .* is still running it"):
        sync([str(folder)])
    process.send_signal(signal.SIGKILL)
    process.communicate()
    sync([str(folder)])
    [killed] = runs(database(tmp_path))
    assert killed.info.status == "KILLED"
    assert killed.data.params["train.epochs"] == "1000000"
    assert f"process {process.pid}" in killed.data.tags["ortpipe.error"]
    assert killed.info.start_time < killed.info.end_time <= time.time() * 1000
    assert "wall_seconds/derive" in killed.data.metrics


def test_a_failed_run_is_recorded_as_failed(tmp_path: Path) -> None:
    done = ortpipe(*SMALL, "recorder=none", "train.optimizer.lr=1e30", cwd=tmp_path)
    assert done.returncode == 1
    sync([str(tmp_path / "outputs")])
    [failed] = runs(database(tmp_path))
    assert failed.info.status == "FAILED"
    assert "finite" in failed.data.tags["ortpipe.error"]


def test_a_sweep_without_tracking_is_recorded_with_its_jobs_and_its_best_is_registered(tmp_path: Path) -> None:
    done = ortpipe("-m", *SMALL, "recorder=none", "train.batch_size=16,32", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for _ in range(2):
        sync([str(tmp_path / "outputs"), "recorder.register=best"])
    [parent] = [run for run in runs(database(tmp_path)) if "mlflow.parentRunId" not in run.data.tags]
    jobs = [run for run in runs(database(tmp_path)) if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(jobs) == 2
    best = min(jobs, key=lambda run: run.data.metrics["loss/train"])
    assert parent.data.tags["ortpipe.best"] == best.info.run_id
    [version] = MlflowClient(database(tmp_path)).search_model_versions("name = 'best'")
    assert version.run_id == best.info.run_id
    assert MlflowClient(database(tmp_path)).get_model_version_by_alias("best", "champion").version == version.version


def test_what_is_no_run_and_settings_that_are_wrong_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"must have a run\.json"):
        sync([str(tmp_path)])
    with pytest.raises(ConfigError, match=r"needs a run's folder"):
        sync(["recorder.experiment=mine"])
    with pytest.raises(ConfigError, match=r"Did you mean 'experiment'"):
        sync([str(folder), "recorder.experimnt=mine"])
    with pytest.raises(TrackingError, match="must be reachable"):
        sync([str(folder), "recorder.tracking_uri=http://127.0.0.1:9"])
