"""A sample of the file operations of runs, each of which fails or is the last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from command import ROOT


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, to make file operations fail")
@pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")
def test_whatever_file_operation_fails_nothing_is_damaged_and_the_next_run_is_right() -> None:
    """Test a sample, which begins with a kill where each kind of file is written.

    To test all operations, run: PYTHONPATH=.:tests python -m faults.operations
    """
    command = [sys.executable, "-m", "faults.operations", "resume", "--sample", "9", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 cases" in done.stdout
    assert "0 with something wrong" in done.stdout
