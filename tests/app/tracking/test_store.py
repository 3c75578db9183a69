from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest
from command import ROOT, Popen
from command import run as run_command
from mlflow import MlflowClient

from ortpipe.app.run.process import this_process
from ortpipe.app.tracking.client import PARENT, open_store, reached
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.errors import TrackingError


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Mlflow:
    folder = tmp_path_factory.mktemp("store")
    return Mlflow(f"sqlite:///{folder}/mlflow.db", artifacts=str(folder / "mlflow"))


def wait_for_a_run(client: MlflowClient, experiment: str) -> str:
    for _ in range(1200):
        for run in client.search_runs([experiment], "attributes.status = 'RUNNING'"):
            if "train.epochs" in run.data.params:
                return run.info.run_id
        time.sleep(0.1)
    raise AssertionError("no run was opened")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are known by their start on Linux")
def test_a_run_whose_process_was_killed_is_closed_by_the_next_one_and_a_living_one_is_not(target: Mlflow) -> None:
    client, experiment = open_store(target)
    folder = Path(target.artifacts or "").parent
    command = [sys.executable, "-m", "ortpipe", "experiment=linear_regression", "train.epochs=1000000"]
    command += [f"recorder.tracking_uri={target.tracking_uri}", f"recorder.artifacts={target.artifacts}"]
    process = Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=-3, stdout=-3)
    try:
        run = wait_for_a_run(client, experiment)
        open_store(target)
        assert client.get_run(run).info.status == "RUNNING"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    open_store(target, parent=run)
    assert client.get_run(run).info.status == "RUNNING", "a sweep's jobs leave that to the sweep"
    open_store(target)
    closed = client.get_run(run)
    assert closed.info.status == "KILLED"
    assert closed.data.tags["ortpipe.pid"] == str(process.pid)
    assert f"process {process.pid} on " in closed.data.tags["ortpipe.error"]
    assert closed.info.start_time <= closed.info.end_time <= time.time() * 1000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of a file's size")
def test_a_write_that_fails_while_the_database_is_created_leaves_nothing_and_blocks_nothing(tmp_path: Path) -> None:
    import resource

    target = Mlflow(f"sqlite:///{tmp_path}/mlflow.db", artifacts=str(tmp_path / "mlflow"))
    _, unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (0, 20_000, 300_000):  # bytes of a file: at the first page, and later
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, unlimited))
        try:
            with pytest.raises(TrackingError, match="must be reachable"):
                open_store(target)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "mlflow.db").touch()  # as an earlier version left it
    client, experiment = open_store(target)
    client.create_run(experiment)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("pragma journal_mode").fetchone() == ("wal",)
        assert database.execute("select count(*) from runs").fetchone() == (1,)


def test_a_process_that_ends_leaves_all_that_it_wrote_in_the_database_itself(tmp_path: Path) -> None:
    code = """if True:
        import gc, sys
        from ortpipe.app.tracking.client import open_store
        from ortpipe.app.tracking.recorders.mlflow import Mlflow
        client, experiment = open_store(Mlflow(sys.argv[1], artifacts="."))
        client.create_run(experiment)
        client.create_registered_model("model")
        gc.freeze()  # as a command does at its end
    """
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    done = run_command(
        [sys.executable, "-c", code, uri], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("mlflow.db*")) == ["mlflow.db"]
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        for table in ("runs", "registered_models"):
            assert database.execute(f"select count(*) from {table}").fetchone() == (1,)


def test_runs_that_say_nothing_of_their_process_are_left_alone(target: Mlflow) -> None:
    client, experiment = open_store(target)
    run = client.create_run(experiment)
    open_store(target)
    assert client.get_run(run.info.run_id).info.status == "RUNNING"
    client.set_terminated(run.info.run_id)


def test_a_locked_database_is_waited_for(target: Mlflow) -> None:
    client, experiment = open_store(target)
    database = target.tracking_uri.removeprefix("sqlite:///")
    lock = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN IMMEDIATE")
    threading.Timer(7, lambda: lock.execute("COMMIT")).start()  # longer than SQLite's own patience of 5 s
    began = time.monotonic()
    run = client.create_run(experiment)
    assert time.monotonic() - began > 5
    client.set_terminated(run.info.run_id)
    lock.close()


def test_a_job_goes_into_the_experiment_of_its_sweep(target: Mlflow) -> None:
    client, _ = open_store(target)
    other = client.create_experiment("another")
    parent = client.create_run(other, tags=this_process()).info.run_id
    found, experiment = open_store(target, parent=parent)
    child = found.create_run(experiment, tags={PARENT: parent})
    assert child.info.experiment_id == other


def test_a_missing_driver_of_postgresql_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(TrackingError) as error, reached("postgresql+psycopg://me:secret@host/runs"):
        raise AssertionError("it is asked for before anything else")
    assert "pip install 'ortpipe[postgresql]'" in str(error.value)
    assert "secret" not in str(error.value)
