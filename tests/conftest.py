"""What every test may use."""

from __future__ import annotations

import os

# The workers and their commands share the cores. With a thread for each core, BLAS waits in loops that take the others'
# time: fits of scikit-learn took 3 to 20 times the processor's time. Libraries read it when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import figures_once
import fits_once
import no_fsync
import pytest
import schema_once
from command import ROOT, Run, ended_at_last, ortpipe
from sample import ALL

APP = (
    *("tests/test_readme.py", "tests/test_docs.py", "tests/test_benchmarks.py"),
    *("tests/acceptance/", "tests/app/", "tests/faults/"),
)
LONG = (*APP, "tests/fast/", "tests/stages/train/")
PROCESSES = {"Popen", "executable", "get_context", "subprocess"}  # names in a test that starts one
COSTLY = (
    *("tests/stages/train/", "tests/stages/convert/", "tests/stages/evaluate/"),
    *("tests/compat/", "tests/fast/", "tests/sklearn/"),
)

# They have no tests of their own, and their imports take seconds.
collect_ignore_glob = ["acceptance/*/*.py", "acceptance/estimators.py", "fuzz/*.py"]

# Collecting 8,000 tests makes millions of objects and little garbage: looking for it took a sixth of the collection's
# time, and afterwards a twelfth of the tests'.
gc.set_threshold(100_000)


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of further searches."""
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a fast test, whose imports take seconds."""
    place = collection_path.relative_to(ROOT).as_posix() if collection_path.is_relative_to(ROOT) else ""
    slow = place.startswith((*APP, "tests/runtime/xla/", "tests/test_doctests.py"))
    return True if config.option.markexpr == "fast" and slow else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the fast tests, and begin with the files that take longest, so that no worker is alone with one at the end.

    Fast is the first case of each test in this process; where tests train, only the first test of each file, and tests
    that have the mark already.
    """
    files, tests = set[str](), set[str]()
    for item in items:
        file, test = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        seen = file in files if file.startswith(COSTLY) else test in tests
        if not seen and not file.startswith(APP) and not _starts_processes(item):
            item.add_marker("fast")
        files.add(file)
        tests.add(test)
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def _starts_processes(item: pytest.Item) -> bool:
    names = set(item.function.__code__.co_names) if isinstance(item, pytest.Function) else set()
    return bool(names & PROCESSES or {"cli"} & set(getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session", autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the workers share tables of MLflow, pictures that commands draw and fitted networks; keep compiled graphs."""
    folder = tmp_path_factory.getbasetemp()
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # of who starts the tests
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "jax"))  # JAX does not write it atomically
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    if not ALL:  # compiling takes most of these tests' time; LLVM's optimizations take a third of it
        flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        os.environ.setdefault("XLA_FLAGS", flags)
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ[schema_once.VARIABLE] = str(folder / "schema.sql")
    os.environ[figures_once.VARIABLE] = str(folder / "figures")
    os.environ[fits_once.VARIABLE] = str(folder / "fits")


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Kill the processes that a failing test leaves: their warnings would fail another test."""
    with ended_at_last():
        yield


@pytest.fixture(autouse=True)
def own_tracking_and_secrets() -> Iterator[None]:
    """Forget the address that a test gave to MLflow, and its secrets: both last as long as the process."""
    schema_once.patch()
    no_fsync.patch()
    yield
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if tracking := sys.modules.get("mlflow.tracking"):
        tracking.set_tracking_uri(None)
    if redact := sys.modules.get("ortpipe.app.redact"):
        redact._secret_texts.clear()


@pytest.fixture
def own_environment() -> Iterator[None]:
    """Forget the variables that a test sets, also by an import: onnxruntime-extensions chooses a slow protobuf."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


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

    if not hasattr(onnxruntime.capi.onnxruntime_pybind11_state, "OrtModuleGraphBuilder"):
        pytest.skip("needs onnxruntime-training, which has no build for this interpreter")
