"""What the tests of faults share."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import ortpipe
from faults.processes import SMALL

Mount = Callable[..., Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one finished run of SMALL and its store; nothing may change it."""
    folder = tmp_path_factory.mktemp("a run that was made")
    done = ortpipe(*SMALL, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """Return a folder of the test's own that holds a copy of that run's store."""
    shutil.copytree(made / "outputs" / "cache", tmp_path / "outputs" / "cache")
    return tmp_path


@pytest.fixture(scope="session")
def expected(made: Path) -> list[str]:
    """Return the digest of each stage's result."""
    return outputs_of(made)[1]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Return a function that mounts a file system in memory, given mount's options; skip where that is not allowed."""
    places: list[Path] = []

    def make(name: str, options: str) -> Path:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
        places.append(place)
        return place

    yield make
    for place in places:
        subprocess.run(["umount", place], check=True)


def outputs_of(folder: Path) -> tuple[list[str], list[str]]:
    """Return which stages of the last run were hits, and every stage's result."""
    lock = json.loads(sorted(folder.glob("outputs/runs/*/*/run.json"))[-1].read_text())["stages"]
    return [stage["name"] for stage in lock if stage["origin"]], [stage["output"] for stage in lock]
