"""A folder is written by one run: a second one is refused before it touches anything, a sweep's job waits."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults.processes import SMALL, end, start, until

from ortpipe.app.claim import LOCK, claimed
from ortpipe.app.run.process import this_process
from ortpipe.app.run.record import JobRecord, Manifest, RunRecord
from ortpipe.app.sweep.callback import RefusedStart, SweepCallback
from ortpipe.app.sweep.job import run_job
from ortpipe.errors import ConfigError
from ortpipe.files import temporary


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "logs"}


def test_a_second_run_into_a_folder_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    first = start(
        tmp_path, "experiment=linear_regression", "train.epochs=100000000", "recorder=none", "hydra.run.dir=r"
    )
    try:
        until(first, "[5/6] train")
        before = contents(tmp_path / "r")
        second = start(tmp_path, "experiment=logistic_regression", *SMALL[1:], "hydra.run.dir=r")
        code, said = end(second)
        assert code == 1
        assert said.splitlines()[0] == "error: Only one run at a time may write a folder."
        assert f"process {first.pid} on " in said
        assert "is writing " in said
        assert "set another hydra.run.dir" in said
        assert contents(tmp_path / "r") == before, "Hydra's own files are of the first run too"
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert (tmp_path / "r" / LOCK).exists()
    with claimed(tmp_path / "r", "hydra.run.dir"):
        pass
    assert not (tmp_path / "r" / LOCK).exists()


def test_what_a_killed_run_left_half_written_goes_when_its_folder_is_claimed(tmp_path: Path) -> None:
    temporary(tmp_path / "run.json").write_text("{")
    temporary(tmp_path / "model").mkdir()
    for name in ("run.json", ".gitignore", ".hydra.old", "checkpoint.safetensors"):
        (tmp_path / name).write_text("mine")
    with claimed(tmp_path, "hydra.run.dir"):
        names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".gitignore", ".hydra.old", LOCK, "checkpoint.safetensors", "run.json"]


def test_who_may_wait_for_a_folder_says_so_and_gets_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def second() -> None:
        with claimed(tmp_path, "hydra.sweep.dir", wait=True):
            order.append("second")

    waiting = threading.Thread(target=second)
    with claimed(tmp_path, "hydra.run.dir"):
        waiting.start()
        while waiting.is_alive() and "waiting for process" not in (said := capsys.readouterr().err):
            time.sleep(0.01)
        assert str(tmp_path) in said
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]


@pytest.mark.parametrize("missing", ["no module", "no locks"])
def test_where_there_are_no_locks_a_run_says_so_and_goes_on(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing == "no module":
        monkeypatch.setitem(sys.modules, "portalocker", None)
    else:
        monkeypatch.setattr("portalocker.portalocker.LOCKER", no_locks)
    with claimed(tmp_path, "hydra.run.dir"):
        assert f"warning: no lock on {tmp_path}: " in capsys.readouterr().err


def no_locks(handle: int, flags: int) -> None:
    raise OSError(37, "No locks available")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="must be writable"), claimed(tmp_path, "hydra.run.dir"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_into_the_folder_of_another_is_refused(tmp_path: Path) -> None:
    with claimed(tmp_path / "s", "hydra.sweep.dir"):
        code, said = end(start(tmp_path, "-m", *SMALL, "seed=0,1", "hydra.sweep.dir=s"))
        assert code == 1
        assert "set another hydra.sweep.dir" in said
        assert [path.name for path in (tmp_path / "s").iterdir()] == [LOCK]


def test_a_job_waits_for_who_is_still_at_work_in_its_folder(tmp_path: Path) -> None:
    """As a worker is for a while, whose sweep was killed and started again."""
    with claimed(tmp_path / "s" / "0", "hydra.sweep.dir"):
        sweep = start(tmp_path, "-m", *SMALL, "hydra.sweep.dir=s")
        assert f"which is writing {tmp_path / 's' / '0'}" in until(sweep, "waiting for process")
        assert not (tmp_path / "s" / "0" / "run.json").exists()
    code, said = end(sweep)
    assert code == 0, said
    assert "job 0 () finished" in said


def sweep(folder: Path, name: str, leader: dict[str, str]) -> None:
    RunRecord(folder, "sweep", leader, id=name, sweep=Manifest(str(folder), [], "loss")).write()


@pytest.mark.parametrize("place", ["same", "."])
def test_two_jobs_of_a_sweep_into_one_folder_are_refused(place: str, tmp_path: Path) -> None:
    sweep(tmp_path, "mine", this_process())

    def run(number: int) -> float | None:
        runtime = SimpleNamespace(output_dir=str(tmp_path / place))
        overrides = SimpleNamespace(task=[f"seed={number}"])
        numbered, sweep = SimpleNamespace(num=number), SimpleNamespace(dir=str(tmp_path))
        hydra = SimpleNamespace(runtime=runtime, sweep=sweep, job=numbered, overrides=overrides)
        return run_job(hydra, lambda job: job.record.values.update({"train/loss": 1.0}))

    (tmp_path / "same").mkdir()
    RunRecord(tmp_path / "same", "job", {}, job=JobRecord("an earlier one", 5, {})).write()
    if place == "same":
        assert [run(0), run(0)] == [1.0, 1.0]
    with pytest.raises(ConfigError, match=r"Every job of a sweep(.|\n)*job 1 in (.|\n)*hydra:job.num"):
        run(1)


def test_a_job_that_begins_after_its_sweep_was_killed_does_not_join_the_next_one(tmp_path: Path) -> None:
    sweep(tmp_path, "next", {})
    folders = {"sweep": SimpleNamespace(dir="."), "runtime": SimpleNamespace(cwd=str(tmp_path))}
    config = SimpleNamespace(hydra=SimpleNamespace(**folders))
    callback = SweepCallback()
    callback.sweep = "next"
    callback.on_job_start(config)
    callback.sweep = "killed"
    with pytest.raises(RefusedStart, match="killed has ended"):
        callback.on_job_start(config)
