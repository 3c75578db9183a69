"""The debug log says where a run's wall time went."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from ortpipe.app.run.breakdown import Stopwatch


def test_laps_add_up_to_all_the_time_that_passed() -> None:
    begun = time.perf_counter()
    watch = Stopwatch(since=begun - 1)
    for name in ("one", "two", "one"):
        time.sleep(0.01)
        watch.lap(name)
    passed = time.perf_counter() - begun
    assert sum(watch.seconds.values()) == pytest.approx(passed + 1, abs=0.005)
    assert watch.seconds["one"] >= 1.02
    assert 0.01 <= watch.seconds["two"] < 0.5


@pytest.mark.usefixtures("fitted_digits")
@pytest.mark.parametrize("verbose", ["true", "ortpipe"])
def test_it_names_every_part_and_they_add_up(verbose: str, cli: Callable) -> None:
    begun = time.time()
    fresh = verbose == "true"  # a process that imports what the other has before
    done = cli(f"hydra.verbose={verbose}", "train.epochs=3", process=fresh)
    assert done.returncode == 0, done.stderr
    log = done.stdout[done.stdout.index("[ortpipe][DEBUG] - wall time") :]
    rows = re.findall(r"^( *)(\S.*?)  +(\d+\.\d{3})$", log, re.M)
    parts = {name: float(seconds) for indent, name, seconds in rows if len(indent) == 2}
    within = {name: float(seconds) for indent, name, seconds in rows if len(indent) == 4}
    beside = {"imports, config", "data", "environment", "recorder opens", "between stages"}
    stages = {"convert", "add_loss", "penalty", "derive", "train", "evaluate"}
    assert set(parts) == beside | stages | {"run folder", "screen", "recorder"}
    assert set(within) == {"graphs", "batches", "sessions", "session.run", "validation", "listeners, checkpoints"}
    wall = float(re.search(r"wall time +(\d+\.\d{3}) s", log).group(1))  # type: ignore[union-attr]
    assert sum(parts.values()) == pytest.approx(wall, abs=0.02)
    assert sum(within.values()) <= parts["train"] + parts["screen"] + parts["run folder"] + parts["recorder"] + 0.01
    assert not fresh or wall <= time.time() - begun  # else it counts from when the imports were done, for all forks
    assert len(done.stdout.splitlines()) < 400  # most are Hydra's own, of the composition


@pytest.mark.usefixtures("fitted_digits")
def test_it_is_quiet_otherwise(cli: Callable) -> None:
    done = cli("train.epochs=1")
    assert "wall time" not in done.stdout + done.stderr
