"""A run folder that cannot be written is an error in our words: Hydra opens its log there before our code runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
PROGRAM = """
import contextlib, io, os, resource, sys
from ortpipe.app.cli import main

sys.argv = ["ortpipe", "--cfg", "job"]
with contextlib.redirect_stdout(io.StringIO()):
    main()  # what a run imports before it has a folder: another user may not read this interpreter
{limit}
sys.argv = ["ortpipe", "experiment=linear_regression", "recorder=none", "hydra.run.dir={folder}"]
main()
"""


def refused(folder: Path, limit: str) -> str:
    """Return the error of a run into a folder."""
    program = PROGRAM.format(folder=folder, limit=limit)
    environment = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="only root can become another user")
def test_another_users_folder_is_refused_by_its_name() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)  # pytest's own folders are its user's alone
        said = refused(folder, f"os.setegid({NOBODY}); os.seteuid({NOBODY}); os.environ.pop('HYDRA_FULL_ERROR')")
        assert list(folder.iterdir()) == []
    assert "Traceback" not in said
    assert "error: Files and folders must be readable and writable." in said
    assert f"Permission denied: '{folder / 'ortpipe.log'}'" in said


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of processes")
def test_a_process_that_may_open_no_more_files_is_told_the_limit(tmp_path: Path) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); os.environ.pop('HYDRA_FULL_ERROR')"
    said = refused(tmp_path / "run", limit)
    assert "Traceback" not in said
    assert "error: A run must be able to open its files." in said
    assert "ulimit -n" in said
