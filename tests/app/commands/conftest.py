"""Commands, called in this process from a folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ortpipe.app.commands import command


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command in an empty folder and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(name: str, *arguments: str) -> str:
        capsys.readouterr()
        command(name)(arguments)
        return capsys.readouterr().out

    return run
