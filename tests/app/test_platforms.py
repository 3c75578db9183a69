"""What Windows and macOS lack, taken away on Linux: the nearest to them that these tests can come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT

WITHOUT = """
import builtins, os, signal, sys

MISSING = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}
BY_PLATFORM = {"portalocker", "psutil"}  # which choose what they import by the system, and choose Linux's here
imported = builtins.__import__

def importing(name, globals=None, locals=None, fromlist=(), level=0):
    package = ((globals or {}).get("__name__") or "").partition(".")[0]
    if name in MISSING and package not in BY_PLATFORM:
        raise ModuleNotFoundError(f"No module named {name!r}, which {package} imports", name=name)
    return imported(name, globals, locals, fromlist, level)

builtins.__import__ = importing
AFFINITY = ("sched_getaffinity", "sched_setaffinity")
for name in ("SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1"):
    delattr(signal, name)
for name in ("chown", "fork", "geteuid", "getuid", "mkfifo", "pread", "pwrite", "register_at_fork", *AFFINITY):
    delattr(os, name)
"""
RUN = """
from ortpipe.app.cli import main
main()
"""
ARGUMENTS = ("experiment=linear_regression", "train.epochs=1", "train.checkpoint.epochs=1", "recorder=none")


def run(tmp_path: Path, *command: str) -> Path:
    """Run a program in a folder; return the folder of the run that it made."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *ARGUMENTS], cwd=tmp_path, env=environment, capture_output=True, text=True)
    if command[0] == "unshare" and done.returncode and not (tmp_path / "outputs").exists():
        pytest.skip(f"needs the right to mount: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "no lock on" not in done.stderr
    [folder] = tmp_path.glob("outputs/runs/*/*")
    assert json.loads((folder / "run.json").read_text())["status"] == "FINISHED"
    assert (
        len(list(folder.glob("stages/*/artifact.json"))) == len(list(tmp_path.glob("outputs/cache/entries/*/*"))) == 6
    )
    return folder


def test_a_run_needs_no_module_signal_or_call_that_windows_lacks(tmp_path: Path) -> None:
    folder = run(tmp_path, sys.executable, "-c", WITHOUT + RUN)
    assert json.loads((folder / "run.json").read_text())["tags"]["ortpipe.started"] != ""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to hide /proc")
def test_a_run_needs_no_proc(tmp_path: Path) -> None:
    kept = "cat /proc/cpuinfo > cpuinfo && mount -t tmpfs none /proc && cp cpuinfo /proc/"  # onnxruntime reads it
    script = f'{kept} && exec "$0" -m ortpipe "$@"'
    folder = run(tmp_path, "unshare", "-m", "sh", "-c", script, sys.executable)
    assert json.loads((folder / "run.json").read_text())["tags"]["ortpipe.boot"] == ""


def test_no_module_of_ours_imports_at_its_top_what_only_posix_has() -> None:
    """A run does not import every one."""
    posix = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "posix", "syslog")
    lines = {
        f"{path.relative_to(ROOT)}: {line}"
        for path in (ROOT / "ortpipe").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("import ", "from ")) and line.split()[1].partition(".")[0] in posix
    }
    assert lines == set()
