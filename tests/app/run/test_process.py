from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import ROOT, Popen

from ortpipe.app.run import process
from ortpipe.app.run.process import BOOT, MACHINE, PID, STARTED, gone, this_process
from ortpipe.app.run.record import last_sign

ASK = "import json; from ortpipe.app.run.process import this_process as p; print(json.dumps(p()), flush=True)"
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are known by their start on Linux")


@linux
def test_a_process_is_gone_when_it_has_ended_and_while_it_waits_for_its_parent_to_notice() -> None:
    other = Popen([sys.executable, "-c", ASK + "; input()"], stdin=-1, stdout=-1, text=True)
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
    assert gone({**mine, STARTED: f"{float(mine[STARTED]) - 0.01:.2f}"})


NOBODY = {PID: str(2**22 + 1)}  # Linux gives no such number


@linux
def test_what_ran_before_this_machine_was_started_again_is_gone_whatever_has_its_number_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = this_process()
    monkeypatch.setattr(process, "_machine_and_boot", lambda: ("this machine", "this boot"))
    assert gone({**mine, MACHINE: "this machine", BOOT: "an earlier boot"})
    assert not gone({**mine, **NOBODY, MACHINE: "another machine", BOOT: "its boot"}), "though both have one host name"
    assert not gone({**mine, **NOBODY, MACHINE: "", BOOT: "of a container"})


def test_nothing_is_said_of_processes_of_which_too_little_is_known() -> None:
    nobody = {**this_process(), **NOBODY}
    assert gone(nobody)
    assert not gone({**nobody, STARTED: ""})
    assert not gone({**nobody, BOOT: ""})
    assert not gone({key: value for key, value in nobody.items() if key not in (MACHINE, BOOT)}), "as others wrote it"
    assert not gone({**nobody, PID: "none"})
    assert not gone({})


def test_a_database_cannot_make_a_run_look_through_a_folder_that_is_not_a_run_s(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert last_sign(tmp_path) is None
    (tmp_path / "run.json").write_text("{}")
    assert last_sign(tmp_path) == pytest.approx(time.time() * 1000, abs=60_000)


def test_the_ids_of_a_machine_are_not_told() -> None:
    own = [Path(path) for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")]
    ids = [path.read_text().strip() for path in own if path.exists()]
    assert not any(text and text in tag for text in ids for tag in this_process().values())


def test_where_starts_have_dates_a_process_is_known_without_boot_and_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows and macOS, which psutil knows and this test does not have."""
    monkeypatch.setattr(process, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(process, "_read", lambda path: "")
    monkeypatch.setattr(process, "uuid", SimpleNamespace(getnode=lambda: 0x0242AC110002))
    monkeypatch.setattr("psutil.LINUX", False)
    process._machine_and_boot.cache_clear()
    try:
        mine = this_process()
        assert mine[MACHINE] == mine[BOOT] != ""
        assert float(mine[STARTED]) == pytest.approx(time.time(), abs=86400 * 30)
        assert not gone(mine)
        assert gone({**mine, **NOBODY})
        monkeypatch.setattr(process, "uuid", SimpleNamespace(getnode=lambda: 1 << 40))
        process._machine_and_boot.cache_clear()
        assert this_process()[BOOT] == "", "a number that was made up names no machine"
        assert not gone({**mine, **NOBODY})
    finally:
        process._machine_and_boot.cache_clear()


LOOKS = """
import json, os, sys
from ortpipe.app.run.process import BOOT, gone, this_process
import psutil
os.setgid(65534)
os.setuid(65534)
tags = json.loads(sys.argv[1])
listed = os.path.exists(f"/proc/{tags['ortpipe.pid']}")
print(json.dumps([listed, gone(tags), gone({**tags, "ortpipe.pid": str(2**22 + 1)}), this_process()[BOOT] != ""]))
"""


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ("-t proc -o hidepid=2 none /proc", [False, False, True, True]),
        ("-t tmpfs none /proc", [False, False, False, False]),
    ],
    ids=["hidden from others", "none at all"],
)
def test_a_living_process_of_another_user_is_not_gone_where_proc_hides_it(mount: str, expected: list[bool]) -> None:
    script = f'mount {mount} || exit 77; exec "$0" "$@"'
    command = ["unshare", "-m", "sh", "-c", script, sys.executable, "-c", LOOKS, json.dumps(this_process())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"needs the right to mount: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
