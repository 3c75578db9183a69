"""Runs that are killed and continued end with the bytes of one that was not."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import ROOT, Popen, ortpipe

from ortpipe import load_artifact

LONG = (
    *("train.epochs=300", "train.early_stop.patience=null", "train.checkpoint.epochs=5"),
    *("convert.source.params.max_iter=3", "evaluate.metrics=[accuracy]"),
)
KILLS = 3


def runs(folder: Path) -> list[Path]:
    return sorted(folder.glob("outputs/runs/*/*"))  # their names are times


def newest_checkpoint(folder: Path) -> str:
    return max((str(path.parent) for path in folder.glob("outputs/runs/*/*/checkpoint.safetensors")), default="")


def trained(folder: Path) -> str:
    return load_artifact(runs(folder)[-1] / "stages" / "5_train").digest()


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ortpipe", "recorder=none", *arguments]
    return Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("unkilled")
    done = ortpipe("recorder=none", *LONG, cwd=folder)
    assert done.returncode == 0, done.stderr
    return trained(folder)


def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path, unkilled: str) -> None:
    moments, kept, gone_on = random.Random(0), "", 0
    for kill in range(KILLS):
        process = start(tmp_path, *LONG, *([f"resume={kept}"] if kept else []))
        trains = kill % 3 < 2  # two of three are killed while they train
        while trains and process.poll() is None and newest_checkpoint(tmp_path) == kept:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.1 if trains else 0.8))
        process.kill()
        _, error = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), error
        if process.returncode == 0:
            break
        gone_on += newest_checkpoint(tmp_path) != kept
        kept = newest_checkpoint(tmp_path)
    else:
        done = ortpipe("recorder=none", *LONG, f"resume={kept}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert gone_on >= 2
    assert trained(tmp_path) == unkilled


def test_a_stopped_run_prints_the_command_that_continues_it_in_whatever_folder(tmp_path: Path, unkilled: str) -> None:
    process = start(tmp_path, *LONG, "hydra.run.dir='outputs/runs/one/lr=0.1,two (ü)'")
    while not list(tmp_path.glob("outputs/runs/*/*/checkpoint.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    [line] = [line for line in error.splitlines() if line.startswith("continue with: ortpipe ")]
    done = ortpipe(*shlex.split(line.removeprefix("continue with: ortpipe ")), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "  continues after epoch " in done.stderr
    assert trained(tmp_path) == unkilled


def test_what_is_no_run_or_another_run_is_refused(tmp_path: Path) -> None:
    short = ("recorder=none", "experiment=linear_regression", "train.epochs=2", "train.checkpoint.epochs=1")
    done = ortpipe("recorder=none", "resume=nowhere", cwd=tmp_path)
    assert done.returncode == 1
    assert "resume must be the folder of a run." in done.stderr
    assert ortpipe(*short, cwd=tmp_path).returncode == 0
    first = runs(tmp_path)[-1]
    done = ortpipe(*short, f"resume={first}", cwd=tmp_path)
    assert "is not needed: train's result is cached" in done.stderr
    done = ortpipe(*short, "train.batch_size=16", f"resume={first}", cwd=tmp_path)
    assert done.returncode == 1
    assert "the same model, data and train settings" in done.stderr
    run = next(p for p in tmp_path.glob("outputs/runs/*/*") if (p / "checkpoint.safetensors").is_file())
    (run / "checkpoint.safetensors").write_bytes(b"no tensors")
    done = ortpipe(*short, f"resume={run}", cwd=tmp_path)
    assert done.returncode == 1
    assert "A checkpoint must be intact." in done.stderr
