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
from command import ROOT, Popen
from faults.processes import SMALL, end, until
from mlflow import MlflowClient

from ortpipe.pipeline.store import Store

YEAR = 365 * 24 * 3600
IN_TURN = """
import json, os, sys
from ortpipe.app.cli import main

*behind, jumps = json.loads(sys.argv[1])
for line in behind:
    sys.argv = ["ortpipe", *line]
    main()
os.unlink(os.environ["CLOCK_FILE"])  # the clock is right again
sys.argv = ["ortpipe", *jumps]
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


def test_a_clock_that_is_behind_and_one_that_jumps_back_spoil_neither_store_nor_times(
    copy: Path, clock: str, expected: list[str]
) -> None:
    """The first runs are a year behind; in the last one the time of day jumps back while it trains."""
    jumped, uri = copy / "jumped", f"sqlite:///{copy}/mlflow.db"
    jumped.touch()
    client = MlflowClient(uri)  # makes the database, with the tables that the tests share
    behind = [[*SMALL, "train.seed=1"], ["cache", "ls"], ["cache", "gc", "--keep", "30d"]]
    jumps = [*SMALL[:1], "train.epochs=600", "recorder=mlflow", f"recorder.tracking_uri={uri}"]
    variables = {"LD_PRELOAD": clock, "CLOCK_SHIFT": str(-YEAR), "CLOCK_FILE": str(jumped)}
    process = Popen(
        [sys.executable, "-c", IN_TURN, json.dumps([*behind, jumps])],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told = until(process, "epoch 60/600")
    jumped.touch()
    code, rest = end(process)
    assert code == 0, told + rest
    assert "8 entries" in told  # the entries of the other machine are of the future
    assert "0 entries removed" in told
    assert "did not record" not in told + rest
    first, last = [json.loads(path.read_text()) for path in sorted(copy.glob("outputs/runs/*/*/run.json"))]
    hits = [stage["name"] for stage in first["stages"] if stage["origin"]]
    assert hits == ["convert", "add_loss", "penalty", "derive"]
    assert [stage["output"] for stage in first["stages"]][:4] == expected[:4]
    entries = list(Store(copy / "outputs" / "cache").entries("train"))
    ages = [time.time() - entry.made for entry in entries if entry.parts["train"]["epochs"] == 1]
    assert sorted(round(seconds / YEAR) for seconds in ages) == [0, 1]
    assert last["status"] == "FINISHED"
    assert last["ended"] >= last["started"]
    assert all(stage["seconds"] >= 0 for stage in last["stages"])
    [entry] = [entry for entry in entries if entry.parts["train"]["epochs"] == 600]
    assert entry.made < time.time() - YEAR / 2  # it did jump
    assert entry.seconds > 0
    [run] = client.search_runs(["1"])
    assert (run.info.status, run.info.end_time >= run.info.start_time) == ("FINISHED", True)
    assert run.data.metrics["test/r2/trained"]
