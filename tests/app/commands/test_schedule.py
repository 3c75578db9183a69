"""ortpipe schedule, as a user calls it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from command import ortpipe
from PIL import Image

from ortpipe.app.command_list import COMMANDS
from ortpipe.stages.train.schedules import SCHEDULES


def blue(file: Path) -> np.ndarray:
    """Return where the picture's line is."""
    pixels = np.asarray(Image.open(io.BytesIO(file.read_bytes())).convert("RGB")).astype(int)
    return (pixels[..., 2] - pixels[..., 0] > 100).nonzero()


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_draws_every_schedule_and_says_where(name: str, tmp_path: Path) -> None:
    done = ortpipe("schedule", f"train/schedule={name}", "train.epochs=30", "data.split.test=0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, _, last = done.stdout.splitlines()
    assert first.startswith(f"{name}: 30 epochs of 23 steps")  # 1,797 rows less 898 and 180, in batches of 32
    assert ("that it watches never improves" in first) == (name in ("adaptive", "reduce_on_plateau"))
    file = tmp_path / "outputs" / "schedules" / f"digits-{name}.png"
    assert last == f"picture  {file}"
    rows, columns = blue(file)
    assert columns.max() - columns.min() > 400
    assert (rows.max() - rows.min() > 100) == (name not in ("constant", "step"))  # 690 steps are no fall yet
    assert not (tmp_path / "outputs" / "runs").exists()


def test_it_reads_a_users_own_configs(tmp_path: Path) -> None:
    (tmp_path / "my" / "experiment").mkdir(parents=True)
    (tmp_path / "my" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n  - override /train/schedule: exponential\ntrain: {epochs: 2}\n"
    )
    done = ortpipe("schedule", "--config-dir", "my", "experiment=mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("exponential: 2 epochs of 37 steps")
    assert (tmp_path / "outputs" / "schedules" / "mine-exponential.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schedule", "train.epoch=3"], ["Did you mean 'train.epochs'?"]),
        (["schedule", "train.epochs=0"], ["train.epochs must be a whole number, at least 1"]),
        (["schedule", "experiment=digit"], ["Did you mean 'digits'?"]),
        (["schedule", "--multirun"], ["has no such argument", "--multirun"]),
        (["schedule", "--config-dir", "away"], ["--config-dir must be a folder"]),
        (["schedule", "train/optimizer=lbfgs", "~train.optimizer.lr"], ["lbfgs, which has none"]),
        (["shedule"], ["shedule is no command", "Did you mean 'schedule'?"]),
    ],
)
def test_what_is_wrong_is_said_as_for_a_run(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    done = ortpipe(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert [word for word in words if word not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.png"))


def test_the_help_fits_100_columns_and_each_command_has_two_examples(tmp_path: Path) -> None:
    everything = ortpipe("--help", cwd=tmp_path).stdout
    assert max(map(len, everything.splitlines())) <= 100
    for name in COMMANDS:
        assert f"  ortpipe {name} " in everything
        done = ortpipe(name, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert f"usage: ortpipe {name}" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 100
        about, _, examples = done.stdout.partition("examples:\n")
        assert examples.count(f"  ortpipe {name}") == 2
        assert [flag for flag in re.findall(r" (--[a-z-]+)", examples) if flag not in about] == []
