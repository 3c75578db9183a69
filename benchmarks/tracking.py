"""The cost of recording a sweep's jobs by several processes at once, and a check that nothing is lost.

    python -m benchmarks.tracking [--children 200] [--points 1000] [--processes 4] [--tracking-uri URI]

One run is really made; every child is that run under a name of its own, recorded stage by stage as while it goes on.
Training would only spread the same calls over more time.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ortpipe.app.run.process import this_process
from ortpipe.app.run.record import FINISHED, RunRecord
from ortpipe.app.tracking.client import PARENT, open_store
from ortpipe.app.tracking.mlflow_run import LEDGER, MlflowRun
from ortpipe.app.tracking.recorders.mlflow import Mlflow

IMPORTS = ["benchmarks.tracking", "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.tracking.rest_store"]
ROWS = 442  # of the diabetes set: one step per epoch takes them all


def main(arguments: list[str] | None = None) -> None:
    """Record the children and print the times; exit with 1 if a point, a run or a file is missing."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        made = _run(Path(scratch), options.points)
        uri = options.tracking_uri or f"sqlite:///{scratch}/mlflow.db"
        target = Mlflow(uri, experiment=f"tracking {time.time()}", artifacts=f"{scratch}/mlflow")
        client, experiment = open_store(target)
        parent = client.create_run(experiment, tags=this_process()).info.run_id
        shares = [range(first, options.children, options.processes) for first in range(options.processes)]
        began = time.perf_counter()
        processes = multiprocessing.get_context("forkserver")  # with one import for all
        processes.set_forkserver_preload(IMPORTS)
        with processes.Pool(options.processes) as pool:
            spent = pool.starmap(_record, [(target, made, Path(scratch), share, parent) for share in shares])
        wall = time.perf_counter() - began
        lost = _lost(target, experiment, parent, options)
    work = sum(cpu for _, cpu in spent)
    seconds = sorted(second for share, _ in spent for second in share)
    print(f"{options.children} children, {options.points} loss points each, {options.processes} processes")
    print(f"tracking in all     {sum(seconds):.1f} s, of which {work:.1f} s of processor time")
    print(f"wall time           {wall:.1f} s")
    print(f"tracking per child  median {seconds[len(seconds) // 2] * 1000:.0f} ms, most {seconds[-1] * 1000:.0f} ms")
    print("lost                nothing" if not lost else "\n".join(lost))
    sys.exit(bool(lost))


def _run(scratch: Path, points: int) -> Path:
    """Return the folder of a run with so many losses: half of them by step, half by epoch of one step."""
    settings = [
        "experiment=linear_regression",
        f"train.epochs={points // 2}",
        f"train.batch_size={ROWS}",
        "recorder=none",
    ]
    command = [sys.executable, "-m", "ortpipe", *settings, f"hydra.run.dir={scratch}/made"]
    subprocess.run(command, check=True, capture_output=True, cwd=scratch)
    return scratch / "made"


def _record(target: Mlflow, made: Path, scratch: Path, share: range, parent: str) -> tuple[list[float], float]:
    """Record some children, one after the other; return the time of each, and the total CPU time."""
    gc.set_threshold(100_000)  # as the command line does
    stages, spent = RunRecord.read(made).stages, []
    for number in share:
        folder = scratch / str(number)
        shutil.copytree(made, folder)
        (folder / LEDGER).unlink(missing_ok=True)
        tags = {**this_process(), PARENT: parent, "ortpipe.sweep": str(scratch), "ortpipe.job": str(number)}
        state = RunRecord(folder, f"child {number}", tags)
        began = time.perf_counter()
        record = MlflowRun(target, state)
        record.push()
        for stage in stages:
            state.stages.append(stage)
            record.push()
        spent.append(time.perf_counter() - began)
        state.end(FINISHED)
        began = time.perf_counter()
        record.push()
        spent[-1] += time.perf_counter() - began
        shutil.rmtree(folder)
    return spent, time.process_time()


def _lost(target: Mlflow, experiment: str, parent: str, options: argparse.Namespace) -> list[str]:
    client, _ = open_store(target, parent)
    runs, token, lost = [], None, []
    while token != "":
        page = client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}'", max_results=200, page_token=token)
        runs, token = [*runs, *page], page.token or ""
    if len(runs) != options.children:
        lost.append(f"{len(runs)} runs")
    for run in runs:
        histories = [client.get_metric_history(run.info.run_id, key) for key in ("loss/step", "loss/train")]
        points = [point.step for history in histories for point in history]
        stages = client.list_artifacts(run.info.run_id, "stages")
        whole = run.info.status == FINISHED and len(stages) == 6 and run.outputs.model_outputs
        if sorted(points) != sorted([*range(1, options.points // 2 + 1)] * 2) or not whole:
            lost.append(f"{run.info.run_name}: {run.info.status}, {len(points)} points, {len(stages)} stages")
    return lost


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracking", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--children", type=int, default=200)
    parser.add_argument("--points", type=int, default=1000, help="losses of each child")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--tracking-uri", help="where to; a fresh SQLite database if it is not given")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
