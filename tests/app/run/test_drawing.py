"""Processes beside a run draw the figures that it would draw itself, and end with it."""

from __future__ import annotations

import fcntl
import functools
import io
import os
import signal
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow.csv
import pytest
from command import ortpipe, start, wait_for

from ortpipe import load_artifact
from ortpipe.app.run import drawing
from ortpipe.app.run.drawing import draw_beside, draw_here
from ortpipe.artifact import Artifact
from ortpipe.stages.evaluate.figures import figures

ENDLESS = ("recorder=none", "experiment=linear_regression", "train.epochs=100000000")


RUNS = {  # the command of each → the figures that it has
    ("convert.source.params.max_iter=10",): {"losses", "confusion", "curves"},
    ("experiment=networks/mlp", "convert.source.hidden=[4]", "evaluate.importance=2", "evaluate.sensitivity=true"): {
        *("losses", "predicted", "residuals", "importance", "sensitivity")
    },
}


def run(folder: Path, arguments: Sequence[str]) -> Path:
    """Return the folder of a run that has ended."""
    done = ortpipe("recorder=none", "train.epochs=2", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    [found] = folder.glob("outputs/runs/*/*")
    return found


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    [first, *_] = RUNS
    return load_artifact(run(tmp_path_factory.mktemp("evaluated"), first) / "stages" / "6_evaluate")


@pytest.mark.parametrize(("arguments", "names"), RUNS.items(), ids=["classes", "values"])
def test_they_draw_the_bytes_that_the_run_would_draw(
    arguments: Sequence[str], names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path, arguments)
    artifact, draw = load_artifact(folder / "stages" / "6_evaluate"), draw_beside()
    monkeypatch.setattr(drawing, "figures", lambda artifact: pytest.fail("this process draws"))
    pictures = draw(artifact)()
    assert pictures == figures(artifact)
    assert pictures == {picture.stem: picture.read_bytes() for picture in (folder / "figures").iterdir()}
    assert pictures.keys() == names


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_the_run_draws_where_one_of_them_was_killed(evaluated: Artifact, fork: bool, asked: bool) -> None:
    draw = draw_beside()
    process = max(psutil.Process().children(), key=psutil.Process.create_time)
    wait_for(lambda: len(process.children()) == 1)
    victim = process.children()[0] if fork else process
    if asked:  # killed while the run waits
        victim.suspend()
        threading.Timer(0.5, victim.kill).start()
    else:
        victim.kill()
        wait_for(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE)
    assert draw(evaluated)() == figures(evaluated)


def test_they_draw_where_arrow_has_read_a_table(evaluated: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow then has a pipe, and ends a process that forks without it."""
    pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))
    expected, draw = figures(evaluated), draw_beside()
    monkeypatch.setattr(drawing, "figures", lambda artifact: pytest.fail("this process draws"))
    assert draw(evaluated)() == expected


def test_they_hold_none_of_the_runs_locks(evaluated: Artifact, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        draw = draw_beside()
        process = max(psutil.Process().children(), key=psutil.Process.create_time)
        wait_for(lambda: len(process.children()) == 1)
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert draw(evaluated)() == figures(evaluated)


def test_they_end_where_nobody_can_ask_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the run was killed before they could ask to end with it."""
    monkeypatch.setattr(drawing, "_belong_to_parent", lambda: None)
    draw = draw_beside()
    process = max(psutil.Process().children(), key=psutil.Process.create_time)
    wait_for(lambda: len(process.children()) == 1)
    beside = [process, *process.children()]
    assert isinstance(draw, functools.partial)
    ends, drawn = draw.args
    for end in (*ends, drawn):
        end.close()
    _, alive = psutil.wait_procs(beside, timeout=30)
    for process in alive:
        process.kill()
    assert not alive


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_they_end_with_the_run_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    endless = start(*ENDLESS, cwd=tmp_path, process=True)
    inside = psutil.Process(endless.pid)
    wait_for(lambda: len(inside.children(recursive=True)) == 2)
    beside = inside.children(recursive=True)
    wait_for(lambda: any(tmp_path.glob("outputs/runs/*/*/logs/5_train.log")))
    endless.send_signal(number)
    endless.communicate()
    psutil.wait_procs(beside, timeout=30)
    assert not any(process.is_running() for process in beside)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_without_room_for_what_is_drawn_the_run_draws(evaluated: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: os.fdopen(os.open("/dev/full", os.O_RDWR), "wb", 0))
    assert draw_beside()(evaluated)() == figures(evaluated)


def test_with_one_core_no_temporary_folder_or_no_further_process_the_run_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise BlockingIOError

    def lack() -> None:
        raise FileNotFoundError("No usable temporary directory found")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", lack)
        assert draw_beside() is draw_here

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {3})
        assert draw_beside() is draw_here
    monkeypatch.setattr(os, "fork", refuse)
    assert draw_beside() is draw_here
