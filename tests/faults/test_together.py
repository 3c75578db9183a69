"""Processes, threads and sweeps that want the same at the same time."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import portalocker
from command import ROOT
from faults.processes import SMALL, contend, end, start, until
from sklearn.datasets import load_diabetes

from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.flow import FLOW
from ortpipe.pipeline.events import StageFinished
from ortpipe.pipeline.locks import folder_lock, key_lock, remove_stale
from ortpipe.pipeline.plan import Step
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import TrainConfig

NAMES = [stage.name for stage in FLOW]


def test_two_sweeps_at_once_compute_every_stage_once_and_both_are_recorded(tmp_path: Path) -> None:
    sweep = ("-m", *SMALL[:2], "train.optimizer.lr=0.001,0.002", "recorder=mlflow")
    processes = [start(tmp_path, *sweep) for _ in range(2)]
    ends = [end(process) for process in processes]
    assert [code for code, _ in ends] == [0, 0], ends
    locks = [json.loads(path.read_text())["stages"] for path in tmp_path.glob("outputs/multiruns/*/*/*/run.json")]
    assert len(locks) == 4
    computed = Counter(stage["name"] for lock in locks for stage in lock if stage["origin"] is None)
    assert computed == dict.fromkeys(NAMES[:4], 1) | {"train": 2, "evaluate": 2}
    with contextlib.closing(sqlite3.connect(tmp_path / "outputs" / "mlflow.db")) as database:
        found = Counter(row[0] for row in database.execute("select status from runs"))
    assert set(found) == {"FINISHED"}
    assert found["FINISHED"] >= 4
    assert list((tmp_path / "outputs" / "cache" / "locks").iterdir()) == []


def test_who_waits_for_a_lock_can_be_stopped(copy: Path) -> None:
    store = Store(copy / "outputs" / "cache")
    [entry] = store.entries("train")
    store.entry_file("train", entry.key).unlink()
    with store.lock(entry.key, print):
        process = start(copy, *SMALL)
        line = until(process, "waiting for")
        assert f"waiting for process {os.getpid()} on " in line
        process.send_signal(signal.SIGINT)
        code, said = end(process)
        assert code == 130, said
        assert "stopped; nothing half-written was left." in said
        assert (store.folder / "locks" / entry.key).exists()


def perform(store: Store, results: list[list[str]]) -> None:
    configs = (
        ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge")),
        *(AddLossConfig(L2()), PenaltyConfig(), DeriveConfig(), TrainConfig(epochs=20), EvaluateConfig()),
    )
    data = split(Rows({"X": X}, Y), SplitConfig(test=0.25))
    events: list[object] = []
    steps = tuple(Step(stage, config) for stage, config in zip(FLOW, configs, strict=True))
    run(steps, {"data": data, "runtime": RuntimeConfig(), "start": None}, [events.append], store)
    results.append([event.name for event in events if isinstance(event, StageFinished) and event.hit is None])


X, Y = load_diabetes(return_X_y=True)


def test_runs_of_one_process_share_a_store(tmp_path: Path) -> None:
    results: list[list[str]] = []
    store = Store(tmp_path / "cache")
    threads = [threading.Thread(target=perform, args=(store, results)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(results) == 3
    assert sorted(name for computed in results for name in computed) == sorted(NAMES)
    perform(store, results)
    assert results[-1] == []


def test_a_lock_that_is_removed_by_who_lets_go_is_never_held_twice(tmp_path: Path) -> None:
    fresh = multiprocessing.get_context("spawn")
    failures = fresh.Queue()
    arguments = (tmp_path / "locks" / "key", 500, str(tmp_path / "inside"), failures)
    workers = [fresh.Process(target=contend, args=arguments) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert failures.empty()
    assert list((tmp_path / "locks").iterdir()) == []


FORKS = """
import os, signal, sys
from pathlib import Path
from ortpipe.pipeline.locks import folder_lock, key_lock

folder = Path(sys.argv[1])
with key_lock(folder / "key", print), folder_lock(folder):
    child = os.fork()
    if child == 0:
        signal.pause()
(folder / "child").write_text(str(child))
"""


def test_a_lock_is_let_go_although_a_process_was_forked_under_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKS, tmp_path], cwd=ROOT, timeout=60, check=True)
    try:
        with (tmp_path / ".lock").open() as lock:
            portalocker.lock(
                lock, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
            )  # raises where the child still holds it
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_only_locks_that_nobody_holds_are_removed(tmp_path: Path) -> None:
    (tmp_path / "left behind").write_text("process 1 on a machine that is no more")
    with key_lock(tmp_path / "held", print):
        remove_stale(tmp_path.iterdir())
        assert [path.name for path in tmp_path.iterdir()] == ["held"]


def test_who_removes_waits_for_who_publishes(tmp_path: Path) -> None:
    inside, order = threading.Event(), []

    def remove() -> None:
        inside.wait(60)
        with folder_lock(tmp_path, exclusive=True):
            order.append("removed")

    remover = threading.Thread(target=remove)
    remover.start()
    with folder_lock(tmp_path), folder_lock(tmp_path):  # they share
        inside.set()
        remover.join(0.3)
        order.append("published")
    remover.join(60)
    assert order == ["published", "removed"]
