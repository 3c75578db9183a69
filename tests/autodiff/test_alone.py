"""autodiff is usable without the rest of ortpipe: its tests in a process that cannot import anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("rules/test_conventions.py",)  # import-linter forbids other imports of autodiff, late ones too
CODE = """
import sys, pytest

class Absent:
    def find_spec(name, path=None, target=None):
        first, *rest = name.split(".")
        if first == "ortpipe" and rest and rest[0] not in ("autodiff", "graph", "bounded", "doors", "errors", "files"):
            raise ModuleNotFoundError(f"{name} is neither autodiff nor what autodiff may use")

sys.meta_path.insert(0, Absent)
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_it_runs_where_nothing_but_graph_can_be_imported() -> None:
    options = ["-n0", "--noconftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    files = [str(ROOT / "tests" / "autodiff" / name) for name in TESTS]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *options, *files], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
