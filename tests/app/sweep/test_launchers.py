"""Every launcher that is installed runs a sweep of jobs, one of which fails.

`ORTPIPE_TESTS=all` adds joblib, which `test_killed.py` always runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app.sweep.sweeps import TINY, folder_of, parent_and_children, rows_of
from command import ROOT, ortpipe
from omegaconf import OmegaConf
from sample import ALL

from ortpipe.app.sweep.fork import Workers

TWO = ("-m", *TINY, "train.optimizer.lr=0.02,10")  # the second rate diverges
THREE = (*TWO[:-1], f"{TWO[-1]},0.002")  # of which a worker does two
LAUNCHERS = {
    "fork": (*THREE, "hydra/launcher=fork", "hydra.launcher.n_jobs=2"),
    **({"joblib": (*THREE, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")} if ALL else {}),
    "submitit": (*TWO, "hydra/launcher=submitit_local"),  # whose jobs are fresh processes
}


def _needs(launcher: str) -> None:
    if launcher != "fork" and importlib.util.find_spec(f"hydra_plugins.hydra_{launcher}_launcher") is None:
        pytest.skip(f"the extra [{launcher}] is not installed")


def _right(where: Path, done: subprocess.CompletedProcess[str], jobs: int) -> None:
    assert done.returncode == 1, done.stderr
    assert f"1 of {jobs} jobs did not finish" in done.stderr
    rows = rows_of(folder_of(where))
    assert [row["status"] for row in rows] == ["finished", "failed", "finished"][:jobs]
    assert [row["best"] for row in rows].count("True") == 1
    parent, children = parent_and_children(where)
    assert parent.info.status == "FAILED"
    assert sorted(child.info.status for child in children) == ["FAILED"] + ["FINISHED"] * (jobs - 1)
    assert {child.data.tags["ortpipe.job"] for child in children} == set("012"[:jobs])


def _recorded(where: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what MLflow's database and the folders hold of each job, but ids, times, places and who computed."""
    jobs, database = {}, where / "outputs" / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        ask = connection.execute
        named = ask("SELECT run_uuid, value FROM tags WHERE key = 'ortpipe.job' ORDER BY value").fetchall()
        for run, number in named:
            rows = ask("SELECT name, status, lifecycle_stage FROM runs WHERE run_uuid = ?", (run,)).fetchall()
            # A training that fails may have recorded more or fewer points, by how long it took.
            for table in ("metrics", "latest_metrics") if rows[0][1] == "FINISHED" else ():
                columns = "key, step, is_nan, CASE WHEN key LIKE 'wall_seconds/%' THEN 0 ELSE value END"
                rows += ask(f"SELECT {columns} FROM {table} WHERE run_uuid = ?", (run,)).fetchall()
            rows += ask("SELECT key, value FROM params WHERE run_uuid = ?", (run,)).fetchall()
            rows += ask("SELECT key FROM tags WHERE run_uuid = ?", (run,)).fetchall()
            [[note]] = ask("SELECT value FROM tags WHERE run_uuid = ? AND key = 'mlflow.note.content'", (run,))
            rows += [(line,) for line in note.splitlines() if " in " not in line]  # how long it took
            folder = folder_of(where) / number
            rows += [(str(file.relative_to(folder)),) for file in folder.rglob("*") if "log" not in file.suffix]
            away = (str(where), "")
            jobs[number] = sorted(tuple(str(value).replace(*away) for value in row) for row in rows)
    return jobs


def test_a_parallel_launcher_records_every_job_under_one_parent(tmp_path: Path) -> None:
    recorded = []
    for launcher in LAUNCHERS:
        if launcher != "fork" and importlib.util.find_spec(f"hydra_plugins.hydra_{launcher}_launcher") is None:
            continue
        where = tmp_path / launcher
        where.mkdir()
        done = ortpipe(*LAUNCHERS[launcher], cwd=where)
        if launcher == "fork":  # the database itself has all that its processes wrote
            assert not list((where / "outputs").glob("mlflow.db-*"))
        _right(where, done, 2 if launcher == "submitit" else 3)
        pids = {child.data.tags["ortpipe.pid"] for child in parent_and_children(where)[1]}
        assert len(pids) == 2
        recorded.append(_recorded(where))
    assert len(recorded[0]) == 3
    for others in recorded[1:]:
        for job, rows in others.items():
            assert sorted({*rows} ^ {*recorded[0][job]}) == []
            assert rows == recorded[0][job]


@pytest.mark.parametrize("jobs", [[], [0]])
def test_a_worker_ends_quietly_when_the_process_of_its_sweep_is_gone(
    jobs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = multiprocessing.Pipe()
    other, _ = multiprocessing.Pipe()
    for job in jobs:
        ours.send(job)
    monkeypatch.setattr(Workers, "_run", lambda self, job: job)
    ours.close()
    with pytest.raises(SystemExit):
        Workers(1, None, None, OmegaConf.create())._work(theirs, other)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[str]]:
    """Start a Ray cluster in a network of its own; yield the words in front of a command that runs there."""
    _needs("ray")
    isolated = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare, and the right to make a network namespace")
    ray = f"{Path(sys.executable).parent}/ray"
    start = f"ip link set lo up; exec {ray} start --head --num-cpus=2 --include-dashboard=false --block --temp-dir={{}}"
    scratch = Path("/tmp") / f"ray-{os.getpid()}"  # paths of sockets are short
    with (tmp_path / "ray.log").open("w") as log:
        head = subprocess.Popen(
            [*isolated, "bash", "-c", start.format(scratch)],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while "Ray runtime started" not in (tmp_path / "ray.log").read_text():
            assert head.poll() is None, (tmp_path / "ray.log").read_text()
            time.sleep(0.2)
        inside = subprocess.check_output(["pgrep", "-P", str(head.pid)], text=True).split()[0]
        yield ["nsenter", "--target", inside, "--net", "--pid", "--mount", f"--wd={tmp_path}"]
    finally:
        head.kill()  # everything in its process namespace goes with it
        head.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def test_jobs_on_a_ray_cluster_are_recorded_under_one_parent(cluster: list[str], tmp_path: Path) -> None:
    command = [*cluster, sys.executable, "-m", "ortpipe", *THREE, "hydra/launcher=ray_cluster"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    _right(tmp_path, subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300), 3)


@pytest.mark.parametrize(
    ("choice", "module", "extra"),
    [
        ("hydra/launcher=submitit_local", "hydra_submitit_launcher", "submitit"),
        ("hydra/launcher=ray_cluster", "hydra_ray_launcher", "ray"),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(choice: str, module: str, extra: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(f"hydra_plugins.{module}") is not None:
        pytest.skip(f"the extra [{extra}] is installed")
    done = ortpipe("-m", choice, "seed=0,1", cwd=tmp_path)
    assert done.returncode == 1
    assert f"pip install 'ortpipe[{extra}]'" in done.stderr
