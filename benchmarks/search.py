"""A search that stops trials against the whole grid: `python -m benchmarks.search`, by default on digits.

`grid` trains every trial to the end. `asha` searches the same trials in rungs. `asha, killed twice` is the same search,
killed with SIGKILL in its first and in its second rung, and started again; its results must be equal. Each has a store
of its own. Processor times leave out killed processes.
"""

import argparse
import csv
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

KEPT = ("train.epochs", "train.optimizer.lr", "train.batch_size", "validation/loss", "status")
RATES = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2)
SIZES = (32, 64, 128, 256)


class Result(NamedTuple):
    """The jobs and the cost of a search."""

    rows: list[dict[str, str]]  # its jobs
    wall: float  # in seconds
    processor: float


def main() -> None:
    """Print a row for each search: its best job, the epochs of all jobs, and its times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", default="networks/cnn")
    parser.add_argument("--epochs", type=int, default=64)
    parser.add_argument("--rates", type=int, default=len(RATES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--word", action="append", default=[], help="a further override, such as data=…")
    chosen = parser.parse_args()
    rates, sizes = ",".join(map(str, RATES[: chosen.rates])), ",".join(map(str, SIZES))
    command = ["-m", f"experiment={chosen.experiment}", "train.early_stop.patience=null"]
    command += [f"train.epochs={chosen.epochs}", "recorder=none", "figures=false"]
    command += ["hparams_search=asha", "hydra.sweeper.sampler=grid", "hydra.sweeper.n_trials=null"]
    command += [f"train.optimizer.lr={rates}", f"train.batch_size={sizes}", *chosen.word]
    command += ["hydra/launcher=fork", f"hydra.launcher.n_jobs={chosen.processes}"]
    trials = chosen.rates * len(SIZES)
    with tempfile.TemporaryDirectory() as world:
        results = {
            "grid": searched(Path(world, "grid"), [*command, f"hydra.sweeper.min_epochs={chosen.epochs}"], ()),
            "asha": searched(Path(world, "asha"), command, ()),
            "asha, killed twice": searched(Path(world, "killed"), command, (trials // 3, trials + trials // 8)),
        }
    heads = "validation loss | jobs | epochs | wall time, s | processor time, s |"
    print(f"| {trials} trials, {chosen.experiment} | {heads}\n| --- | --- | --- | --- | --- | --- |")
    for name, (rows, wall, processor) in results.items():
        [best] = [row for row in rows if row["best"] == "True"]
        loss, epochs = float(best["validation/loss"]), epochs_of(rows, chosen.epochs)
        print(f"| {name} | {loss:.4f} | {len(rows)} | {epochs} | {wall:.0f} | {processor:.0f} |")
    whole, again = (_without_places(results[name].rows) for name in ("asha", "asha, killed twice"))
    print("the results after two kills are", "equal" if whole == again else "NOT equal")
    sys.exit(whole != again)


def searched(folder: Path, command: list[str], kills: tuple[int, ...]) -> Result:
    """Run a search in a new folder; kill it once so many jobs have finished, and start it again."""
    folder.mkdir()
    began, before = time.monotonic(), _processor()
    for finished in (*kills, None):
        with Path(folder, "log").open("w") as log:
            words = [sys.executable, "-m", "ortpipe", *command]
            process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        while process.poll() is None:
            if finished is not None and _finished(folder) >= finished:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.2)
        killed = process.returncode == -signal.SIGKILL
        assert killed == (finished is not None), Path(folder, "log").read_text()
    text = (_newest(folder) / "summary.csv").read_text()
    return Result(list(csv.DictReader(text.splitlines())), time.monotonic() - began, _processor() - before)


def epochs_of(rows: list[dict[str, str]], epochs: int) -> int:
    """Return the epochs that jobs trained: of a trial, those of its last rung, because each job continues.

    `epochs` are those of jobs that are in no rung.
    """
    last: dict[tuple[str, str], int] = {}
    for row in rows:
        trial = row["train.optimizer.lr"], row["train.batch_size"]
        last[trial] = max(last.get(trial, 0), int(row.get("train.epochs", epochs)))
    return sum(last.values())


def _finished(folder: Path) -> int:
    files = _newest(folder).glob("*/run.json") if (folder / "outputs" / "multiruns").is_dir() else ()
    return sum(json.loads(file.read_text())["status"] == "FINISHED" for file in files)


def _newest(folder: Path) -> Path:
    return max(folder.glob("outputs/multiruns/*/*"), default=folder)


def _processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _without_places(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{key: row[key] for key in KEPT if key in row} for row in rows]


if __name__ == "__main__":
    main()
