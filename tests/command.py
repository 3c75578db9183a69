"""The command line, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]


def ortpipe(*arguments: str, cwd: Path, **options: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m ortpipe` in a folder and return its output."""
    inherited = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}  # a test may have set it
    environment = {**inherited, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true", **options}
    return subprocess.run(
        [sys.executable, "-m", "ortpipe", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
