"""What every test may use."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Run, ortpipe


@pytest.fixture(autouse=True)
def own_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget where another test recorded: `mlflow.set_tracking_uri` leaves it in the environment."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    """Run the command line in an empty folder, without tracking unless the test says so."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return ortpipe("recorder=none", *arguments, cwd=tmp_path, **options)

    return run


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
