"""What every test may use."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import figures_once
import fits_once
import no_fsync
import pytest
import schema_once
from command import Run, ortpipe

LONG = (
    *("tests/test_readme.py", "tests/faults/", "tests/app/", "tests/test_benchmarks.py"),
    *("tests/acceptance/", "tests/stages/train/"),
)

# They have no tests of their own, and their imports take seconds.
collect_ignore_glob = ["acceptance/*/*.py", "acceptance/estimators.py", "fuzz/*.py"]

# Collecting 8,000 tests makes millions of objects and little garbage: looking for it took a sixth of the collection's
# time, and afterwards a twelfth of the tests'.
gc.set_threshold(100_000)


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of further searches."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker is alone with one at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session", autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the workers share MLflow's tables of a new database, the pictures that commands draw, and fitted networks."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ[schema_once.VARIABLE] = str(folder / "schema.sql")
    os.environ[figures_once.VARIABLE] = str(folder / "figures")
    os.environ[fits_once.VARIABLE] = str(folder / "fits")


@pytest.fixture(autouse=True)
def own_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget where another test recorded: `mlflow.set_tracking_uri` leaves it in the environment."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    schema_once.patch()
    no_fsync.patch()


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    """Run the command line in an empty folder, without tracking unless the test says so."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return ortpipe("recorder=none", *arguments, cwd=tmp_path, **options)

    return run


@pytest.fixture(scope="session")
def store_of_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with the stages of the default experiment before `train`; nothing may change it."""
    folder = tmp_path_factory.mktemp("store of digits")
    for command in (("recorder=none", "train.epochs=1"), ("cache", "rm", "train"), ("cache", "rm", "evaluate")):
        done = ortpipe(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "outputs" / "cache"


@pytest.fixture
def fitted_digits(store_of_digits: Path, tmp_path: Path) -> None:
    """Give the test's folder a store where the network of the default experiment is fitted already."""
    shutil.copytree(store_of_digits, tmp_path / "outputs" / "cache")


@pytest.fixture
def only_run(tmp_path: Path) -> Callable[[], Path]:
    """Return the folder of the only run under the test's outputs."""

    def find() -> Path:
        [folder] = tmp_path.glob("outputs/runs/*/*")
        return folder

    return find


@pytest.fixture(scope="session")
def training_build() -> None:
    """Skip, by name, what needs onnxruntime-training's gradient builder."""
    import onnxruntime

    if not hasattr(onnxruntime.capi._pybind_state, "OrtModuleGraphBuilder"):
        pytest.skip("needs onnxruntime-training, which has no build for this interpreter")
