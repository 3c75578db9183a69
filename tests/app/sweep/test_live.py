"""What a terminal shows of a sweep: the jobs at work in one table, each that ended in a line above it."""

from __future__ import annotations

import re
from pathlib import Path

from command import on_terminal


def _screens(text: str) -> list[list[str]]:
    """Return what stood on the terminal before each time that lines of it were cleared, and at the end."""
    screens, lines = [], []
    for part in re.split("(\x1b\\[[0-9]+F\x1b\\[J)", text.replace("\r\n", "\n")):
        if part.startswith("\x1b"):
            screens.append(list(lines))
            del lines[-int(re.findall("[0-9]+", part)[0]) :]
        else:
            lines += part.splitlines()
    return [*screens, lines]


def test_a_terminal_shows_the_jobs_at_work_until_they_end(tmp_path: Path) -> None:
    jobs = (
        "train/optimizer=nesterov",
        "train.optimizer.lr=0.1,0.2,1e9",
        "train.epochs=150",
        "recorder=none",
        "figures=false",
    )
    code, text = on_terminal("-m", "hydra/launcher=fork", "hydra.launcher.n_jobs=2", *jobs, cwd=tmp_path, columns=90)
    screens = _screens(text)
    tables = [[line for line in screen if line.startswith(("ended: ", "job ", "data: "))] for screen in screens]
    assert any(re.match(r"ended: 0, running: [12]$", line) for table in tables for line in table)
    rows = [line for table in tables for line in table if re.match(r"job \d  lr=", line)]
    assert any(re.match(r"job [01]  lr=0\.[12]  \w+  \S", line) for line in rows)
    assert max(map(len, rows)) < 90
    data, *ended = [line for line in screens[-1] if line.startswith(("ended: ", "job ", "data: "))]
    assert data == "data: 1,168 rows to train, 180 to validate, 449 to test; 64 values each"
    first, second, third, *errors = sorted(ended)
    assert first.startswith("job 0 (lr=0.1) finished: validation loss ")
    assert second.startswith("job 1 (lr=0.2) finished: validation loss ")
    assert third == "job 2 (lr=1e+09) failed: Losses and parameters must stay finite; nothing was published."
    assert (code, errors) == (1, [])
