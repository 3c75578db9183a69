"""A worker that has no job ends soon after the process that leads its sweep was killed; one that has goes on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command import ROOT, Popen

LEADER = "import json, time; from ortpipe.app.run.process import this_process; print(json.dumps(this_process()))"
WORKER = """
import json, sys, time
from ortpipe.app.sweep.job import at_work
leader = json.loads(sys.argv[1])
with at_work(leader):
    print("at work", flush=True)
    {job}
print("idle", flush=True)
time.sleep(60)
"""


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    return Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


@pytest.mark.parametrize("job", ["pass", "time.sleep(3)"])
def test_an_idle_worker_ends_with_its_killed_leader_and_one_at_work_ends_after_its_job(job: str) -> None:
    leader = started(f"{LEADER}; sys = __import__('sys'); sys.stdout.flush(); time.sleep(60)")
    assert leader.stdout is not None
    worker = started(WORKER.format(job=job), leader.stdout.readline())
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "at work\n"
        if job == "pass":
            assert worker.stdout.readline() == "idle\n"
        assert worker.poll() is None
        leader.kill()
        leader.wait()
        assert worker.wait(30) == 128 + 15
        assert worker.stdout.read() == ("" if job == "pass" else "idle\n")
    finally:
        for process in (leader, worker):
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
