from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ortpipe.app.tracking.process import HOST, PID, STARTED, gone, this_process

ASK = "import json; from ortpipe.app.tracking.process import this_process as p; print(json.dumps(p()), flush=True)"
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are known by their start on Linux")


@linux
def test_a_process_is_gone_when_it_has_ended_and_while_it_waits_for_its_parent_to_notice() -> None:
    import json

    other = subprocess.Popen([sys.executable, "-c", ASK + "; input()"], stdin=-1, stdout=-1, text=True)
    assert other.stdout is not None
    tags = json.loads(other.stdout.readline())
    assert tags[PID] == str(other.pid)
    assert not gone(tags)
    os.kill(other.pid, signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
    assert gone(tags)
    other.communicate()
    assert gone(tags)


@linux
def test_a_number_that_another_process_has_now_does_not_bring_a_process_back() -> None:
    mine = this_process()
    assert not gone(mine)
    assert gone({**mine, STARTED: str(int(mine[STARTED]) - 1)})


def test_nothing_is_said_of_processes_elsewhere_or_without_a_start() -> None:
    nobody = {**this_process(), PID: str(2**22 + 1)}
    assert not gone({**nobody, HOST: "elsewhere"})
    assert not gone({**nobody, STARTED: ""})
    assert not gone({})
