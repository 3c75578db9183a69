"""Training without the folder `ortpipe/fast/`: the same results by the plain way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("test_epoch.py", "test_portable.py", "test_optimizers.py", "test_full_batch.py", "test_diagnose.py")
CODE = """
import importlib.util, sys, pytest
assert importlib.util.find_spec("ortpipe.fast") is None

class FirstCases:
    def pytest_collection_modifyitems(self, items):
        items[:] = {item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()

sys.exit(pytest.main(sys.argv[1:], plugins=[FirstCases()]))
"""


@pytest.fixture
def without_fast(tmp_path):
    """Return a folder with the package, but without `fast`."""
    (tmp_path / "ortpipe").mkdir()
    for path in (ROOT / "ortpipe").iterdir():
        if path.name not in ("fast", "__pycache__"):
            (tmp_path / "ortpipe" / path.name).symlink_to(path)
    return tmp_path


def test_the_tests_of_training_pass_with_the_folder_removed(without_fast):
    """The first case of each is run."""
    files = [str(ROOT / "tests" / "stages" / "train" / name) for name in TESTS]
    options = ["-n0", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE, *options, *files],
        capture_output=True,
        text=True,
        cwd=without_fast,
        env={**environment, "PYTHONPATH": str(without_fast)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
