"""A time of day that jumps back: between runs, and in the middle of one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import ROOT, run
from faults.conftest import outputs_of
from faults.processes import SMALL, end, start, until

from ortpipe.pipeline.store import Store

YEAR = 365 * 24 * 3600
IN_TURN = """
import json, sys
from ortpipe.app.cli import main

for line in json.loads(sys.argv[1]):
    sys.argv = ["ortpipe", *line]
    main()
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a library for LD_PRELOAD that shifts the time of day."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, to make a clock that goes wrong")
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return str(library)


def test_a_store_is_of_use_to_a_machine_whose_clock_is_a_year_behind(
    copy: Path, clock: str, expected: list[str]
) -> None:
    lines = [[*SMALL, "train.seed=1"], ["cache", "ls"], ["cache", "gc", "--keep", "30d"]]
    behind = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": clock, "CLOCK_SHIFT": str(-YEAR)}
    done = run([sys.executable, "-c", IN_TURN, json.dumps(lines)], cwd=copy, env=behind, text=True)
    assert done.returncode == 0, done.stderr
    hits, found = outputs_of(copy)
    assert (hits, found[:4]) == (["convert", "add_loss", "penalty", "derive"], expected[:4])
    made = sorted(entry.made - time.time() for entry in Store(copy / "outputs" / "cache").entries("train"))
    assert [round(seconds / YEAR) for seconds in made] == [-1, 0]
    assert "8 entries" in done.stdout  # what the other machine made is of the future
    assert "0 entries removed" in done.stdout


def test_a_clock_that_jumps_back_while_a_run_goes_on_leaves_times_in_order(copy: Path, clock: str) -> None:
    jumped = copy / "jumped"
    uri = f"sqlite:///{copy}/mlflow.db"
    variables = {"LD_PRELOAD": clock, "CLOCK_SHIFT": str(-YEAR), "CLOCK_FILE": str(jumped)}
    arguments = (*SMALL[:1], "train.epochs=600", "recorder=mlflow", f"recorder.tracking_uri={uri}")
    process = start(copy, *arguments, **variables)
    until(process, "epoch 60/600")
    jumped.touch()
    code, said = end(process)
    assert code == 0, said
    assert "did not record" not in said
    [state] = [json.loads(path.read_text()) for path in copy.glob("outputs/runs/*/*/run.json")]
    assert state["status"] == "FINISHED"
    assert state["ended"] >= state["started"]
    assert all(stage["seconds"] >= 0 for stage in state["stages"])
    [entry] = [e for e in Store(copy / "outputs" / "cache").entries("train") if e.parts["train"]["epochs"] == 600]
    assert entry.made < time.time() - YEAR / 2  # it did jump
    assert entry.seconds > 0
    from mlflow import MlflowClient

    [run] = MlflowClient(uri).search_runs(["1"])
    assert (run.info.status, run.info.end_time >= run.info.start_time) == ("FINISHED", True)
    assert run.data.metrics["test/r2/trained"]
