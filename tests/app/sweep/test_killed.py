"""A sweep that is stopped or killed: its record is closed, its workers stop, and the same command does the rest."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from app.sweep.sweeps import folder_of, parent_and_children, rows_of, runs_of, states_of
from command import ROOT, Popen, ortpipe, wait_for
from mlflow.entities import Run

LONG = ("-m", "experiment=linear_regression", "seed=0,1,2", "train.epochs=10000000")


def _started(where: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return Popen(
        [sys.executable, "-m", "ortpipe", *arguments],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _derived(where: Path, jobs: int) -> Callable[[], bool]:
    pattern = "outputs/multiruns/*/*/*/stages/4_derive/artifact.json"
    return lambda: len(list(where.glob(pattern))) >= jobs


def test_sigterm_ends_the_whole_sweep_and_closes_its_records(tmp_path: Path) -> None:
    sweep = _started(tmp_path, *LONG)
    wait_for(_derived(tmp_path, 1))
    sweep.terminate()
    assert sweep.wait(60) == 128 + signal.SIGTERM
    assert states_of(folder_of(tmp_path)) == {0: "killed"}
    parent, [child] = parent_and_children(tmp_path)
    assert {parent.info.status, child.info.status} == {"KILLED"}
    assert [row["status"] for row in rows_of(folder_of(tmp_path))] == ["killed"]


def test_a_killed_sweep_is_finished_by_the_same_command_and_leaves_no_running_run(tmp_path: Path) -> None:
    again = ("-m", "experiment=linear_regression", "seed=0,1,2", "train.epochs=300")
    sweep = _started(tmp_path, *again)
    wait_for(_derived(tmp_path, 2))
    sweep.kill()
    sweep.wait()
    done = ortpipe(*again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(folder_of(tmp_path))
    assert [row["status"] for row in rows] == ["finished"] * 3
    assert rows[0]["hits"] == "6/6"
    assert int(rows[1]["hits"][0]) >= 4
    runs = runs_of(tmp_path)
    old, new = sorted({run.data.tags["ortpipe.pid"] for run in runs}, key=lambda pid: pid != str(sweep.pid))
    ended = {run.info.run_name: run.info.status for run in runs if run.data.tags["ortpipe.pid"] == old}
    assert ended["linear_regression sweep"] == "KILLED"
    assert "RUNNING" not in ended.values()
    assert {run.info.status for run in runs if run.data.tags["ortpipe.pid"] == new} == {"FINISHED"}


def test_workers_whose_sweep_was_killed_stop_the_idle_one_too(tmp_path: Path) -> None:
    if importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is None:
        pytest.skip("the extra [joblib] is not installed")
    jobs = ("-m", "experiment=linear_regression", "train.epochs=1,10000000")
    sweep = _started(tmp_path, *jobs, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    wait_for(_derived(tmp_path, 2))
    wait_for(lambda: states_of(folder_of(tmp_path)).get(0) == "finished")  # its worker waits for another
    sweep.kill()
    sweep.wait()
    wait_for(lambda: states_of(folder_of(tmp_path)) == {0: "finished", 1: "killed"})

    def children() -> list[Run]:
        return [run for run in runs_of(tmp_path) if "mlflow.parentRunId" in run.data.tags]

    # a job's folder says first how it ended, its record in MLflow a moment later
    wait_for(lambda: sorted(child.info.status for child in children()) == ["FINISHED", "KILLED"])
    wait_for(
        lambda: not any(Path(f"/proc/{child.data.tags['ortpipe.pid']}").exists() for child in children()), seconds=120
    )


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_no_process_of_a_killed_sweep_that_forked_goes_on(tmp_path: Path) -> None:
    sweep = _started(tmp_path, *LONG, "recorder=none", "hydra/launcher=fork", "hydra.launcher.n_jobs=2")
    wait_for(_derived(tmp_path, 2))
    records = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/multiruns/*/*/*/run.json")]
    pids = {record["tags"]["ortpipe.pid"] for record in records}
    sweep.kill()
    sweep.wait()
    wait_for(lambda: states_of(folder_of(tmp_path)) == {0: "killed", 1: "killed"})
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert len(pids) == 2
