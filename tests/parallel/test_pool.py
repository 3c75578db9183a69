"""A pool returns the results of all slices, whatever happens to its workers."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from ortpipe.errors import TrainError
from ortpipe.parallel import ParallelConfig, Pool


def squares():
    """Return work; it is defined here so that it is sent by value."""

    class Squares:
        def __call__(self, shared, slices):
            time.sleep(shared.get("seconds", 0))
            for number in slices:
                mark = shared["marks"] / str(number)
                if number == shared.get("dies") and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), shared["signal"])
                if number == shared.get("always dies"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if number == shared.get("raises"):
                    raise shared["error"](f"slice {number}")
            return [np.array(number**2) for number in slices]

    return Squares()


def results(running, *call):
    """Return the results of all calls together."""
    return sorted(result for _, _, answer in running.run(*call) for result in answer.result)


def pool(reports, **settings):
    work, config = squares(), ParallelConfig(**{"slices": 5, "workers": 2, "timeout": 30.0, **settings})
    return contextlib.closing(Pool(lambda: work, config, reports.append))


def workers():
    """Return the running workers of this process."""
    return [child for child in psutil.Process().children() if "ortpipe.parallel.process" in child.cmdline()]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers_computes_all_slices(tmp_path, workers):
    with pool([], workers=workers) as running:
        for slices in (5, 3, 1):
            assert results(running, {"marks": tmp_path}, slices) == [n**2 for n in range(slices)]
        assert running.size == workers


@pytest.mark.parametrize(("sign", "reason"), [(signal.SIGKILL, "ended"), (signal.SIGSTOP, "gave no answer for")])
def test_a_worker_that_dies_or_hangs_is_replaced_and_its_slices_are_computed_again(tmp_path, sign, reason):
    reports = []
    with pool(reports, timeout=3.0) as running:
        for _ in range(2):  # so that no worker is new
            running.run({"marks": tmp_path}, 5)
        assert running.has_pace
        before = {child.pid for child in workers()}
        shared = {"marks": tmp_path, "dies": 3, "signal": sign}
        assert results(running, shared, 5, 100) == [0, 1, 4, 9, 16]  # many steps are no reason to wait
        assert running.size == 2
        assert len(before) >= 2
    assert [report for report in reports if reason in report]
    assert not workers()


def test_a_worker_that_is_always_slower_than_the_timeout_is_not_replaced(tmp_path):
    reports = []
    with pool(reports, workers=1, slices=1, timeout=0.2) as running:
        for _ in range(2):  # the first answer of a worker may take long
            assert results(running, {"marks": tmp_path, "seconds": 1.0}, 1) == [0]
    assert reports == []


def test_workers_leave_ctrl_c_to_their_parent(tmp_path):
    reports = []
    with pool(reports) as running:
        running.run({"marks": tmp_path}, 5)
        for child in workers():
            child.send_signal(signal.SIGINT)
        assert results(running, {"marks": tmp_path}, 5) == [0, 1, 4, 9, 16]
    assert reports == []


def test_a_slice_with_which_every_worker_dies_ends_the_run(tmp_path):
    with pool([]) as running, pytest.raises(TrainError, match="3 workers in turn that ended with slice 3"):
        running.run({"marks": tmp_path, "always dies": 2}, 5)


@pytest.mark.parametrize("error", [ValueError, TimeoutError])
def test_an_error_of_the_work_is_raised_and_ends_the_workers(tmp_path, error):
    with pool([], workers=1) as running:
        with pytest.raises(error, match="slice 1") as raised:
            running.run({"marks": tmp_path, "raises": 1, "error": error}, 5)
        assert "in a worker" in raised.value.__notes__[0]
    assert not workers()


def test_an_answer_in_another_form_names_the_worker_and_its_slices():
    def other_version():
        def work(shared, slices):
            sys.modules["__main__"].timed = lambda work, shared, slices: [shared]  # as a worker of another version
            return slices

        return work

    work = other_version()
    with contextlib.closing(Pool(lambda: work, ParallelConfig(slices=2, workers=1), print)) as running:
        running.run(0, 2)
        with pytest.raises(TrainError, match=r"got: another object.* from worker 1 \(process \d+\) for slices 1, 2"):
            running.run(0, 2)


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(
        "import psutil, time\n"
        "from ortpipe.parallel import ParallelConfig, Pool\n"
        "def work():\n"
        "    return lambda: lambda shared, slices: [n for n in slices]\n"
        "pool = Pool(work(), ParallelConfig(slices=2, workers=2), print)\n"
        "pool.run(0, 2)\n"
        "print(*[child.pid for child in psutil.Process().children()], flush=True)\n"
        "time.sleep(60)\n"
    )
    driver = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    workers = [int(number) for number in re.findall(r"\d+", driver.stdout.readline())]
    assert len(workers) == 2
    assert all(map(psutil.pid_exists, workers))
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 20
    while any(map(alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "zombie" not in status.read_text()
