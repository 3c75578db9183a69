"""Commands, called in this process from a folder of the test's own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from command import ortpipe

from ortpipe.app.command_list import command


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command in an empty folder and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        capsys.readouterr()
        command(name)(arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="session")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short recorded run; MLflow's database lies beside it."""
    folder = tmp_path_factory.mktemp("runs")
    done = ortpipe(
        "experiment=linear_regression", "train.epochs=2", f"paths.outputs={folder}", "hydra.run.dir=linear", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder / "linear"


@pytest.fixture(scope="session")
def tracked(linear: Path) -> str:
    """Return the id of that run."""
    with contextlib.closing(sqlite3.connect(linear.parent / "mlflow.db")) as database:
        [[run_id]] = database.execute("SELECT run_uuid FROM runs").fetchall()
    return run_id
