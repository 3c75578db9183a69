"""Runs of the command line that a test interferes with while they go on."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

from command import ROOT, Popen

from ortpipe.pipeline.locks import key_lock

SMALL = ("experiment=linear_regression", "train.epochs=1", "recorder=none")


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command line in a folder; what it says is read with `until` and `end`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true", **variables}
    command = [sys.executable, "-m", "ortpipe", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return Popen(command, cwd=folder, env=environment, text=True, **pipes)


def until(process: subprocess.Popen[str], text: str) -> str:
    """Return the output of a process up to a line with this text."""
    heard = []
    for line in process.stdout or ():
        heard.append(line)
        if text in line:
            return "".join(heard)
    raise AssertionError(f"{text!r} was not said: {''.join(heard)}")


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a process; return its exit code and the rest of what it said."""
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def contend(path: Path, rounds: int, inside: str, failures: multiprocessing.Queue[str]) -> None:
    """Hold a lock again and again, and tell where another process holds it too."""
    for _ in range(rounds):
        with key_lock(path, lambda _: None):
            try:
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails where another is inside
            except FileExistsError:
                failures.put("two at once")
            else:
                os.unlink(inside)
