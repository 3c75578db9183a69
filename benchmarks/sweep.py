"""One sweep with and without the store and tracking, side by side: `python -m benchmarks.sweep`; or single runs.

The sweep is of the digits experiment over two optimizers, rates and seeds, four jobs at a time (the extra [joblib]). It
runs whole in every setting, each in a folder of its own, one after the other.

`--starts 7` measures single commands instead, so often each, and `--beside CHECKOUT` those of another checkout in turn
with them: the medians of wall time and of processor time, with children's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

RECORDS = "multiruns/*/*/*/run.json"
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
SETTINGS = {  # name → its overrides, and the name of its folder
    "store, MLflow": ([], "first"),
    "the same again": ([], "first"),
    "store, no tracking": (["recorder=none"], "second"),
    "no store, no tracking": (["recorder=none", "paths.cache=null"], "third"),
    "no store, MLflow": (["paths.cache=null"], "fourth"),
}
STARTS = {  # a command → its words, and the time that issue and README aim at, in seconds
    "computed, MLflow": (["paths.cache=null"], None),
    "all stored, MLflow": ([], 2.5),
    "all stored, MLflow, no figures": (["figures=false"], 2.5),
    "new training, MLflow": (["train.epochs={number}"], None),
    "computed, no store, no tracking": (["recorder=none", "paths.cache=null"], 1.6),
    "all stored, no tracking": (["recorder=none"], 1.0),
    "all stored, no tracking, no figures": (["recorder=none", "figures=false"], 1.0),
    "new training, no tracking": (["recorder=none", "train.epochs={number}"], None),
    "plan": (["plan"], 0.8),
    "--cfg job": (["--cfg", "job"], None),
    "--help": (["--help"], 0.35),
    "--version": (["--version"], None),
}
FIT = """
from sklearn import datasets, neural_network, pipeline, preprocessing
rows, labels = datasets.load_digits(return_X_y=True)
network = neural_network.MLPClassifier([100], max_iter=400, random_state=0)
pipeline.make_pipeline(preprocessing.MinMaxScaler(), network).fit(rows[:1168], labels[:1168])
"""  # scikit-learn's part of the digits experiment: the minimum for a run that computes everything
WITHOUT_FOLDER = ("--help", "--version")
IMPORTS = ("mlflow.store.tracking.sqlalchemy_store", "sklearn.neural_network", "matplotlib.figure", "hydra", "onnx")


def main() -> None:
    """Print a row per setting: wall time, and how many stages were computed of how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, default=len(RATES), help="how many learning rates")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--launcher", default="joblib", help="or fork")
    parser.add_argument("--starts", type=int, help="measure single commands, so often each")
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn")
    given = parser.parse_args()
    if given.starts is not None:
        starts(given.starts, given.beside)
        return
    sweep = ["train/optimizer=nesterov,adam", f"train.optimizer.lr={','.join(map(str, RATES[: given.rates]))}"]
    sweep += [f"seed={','.join(map(str, range(given.seeds)))}", "objective=accuracy"]
    launcher = [f"hydra/launcher={given.launcher}", f"hydra.launcher.n_jobs={given.processes}"]
    jobs = 2 * given.rates * given.seeds
    print(f"| {jobs} jobs, {given.processes} at a time | wall time | stages computed |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as world:
        for name, (settings, place) in SETTINGS.items():
            outputs = Path(world) / place
            before = set(outputs.glob(RECORDS))
            began = time.perf_counter()
            command = [sys.executable, "-m", "ortpipe", "-m", *launcher, *sweep, f"paths.outputs={outputs}", *settings]
            subprocess.run(command, check=True, capture_output=True)
            wall = time.perf_counter() - began
            records = [json.loads(file.read_text())["stages"] for file in set(outputs.glob(RECORDS)) - before]
            computed = sum(stage["origin"] is None for stages in records for stage in stages)
            print(f"| {name} | {wall:.1f} s | {computed} of {sum(map(len, records))} |", flush=True)


def starts(times: int, beside: Path | None) -> None:
    """Print a row per command: the medians of wall time and processor time, of each checkout; then those of imports."""
    checkouts = {
        "here": Path(__file__).resolve().parents[1],
        **({} if beside is None else {"beside": beside.resolve()}),
    }
    spent: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as world:
        for number in range(-1, times):  # the first one fills stores and caches of bytecode
            for name, (words, _) in STARTS.items():
                for place, folder in checkouts.items():
                    told = [] if name in WITHOUT_FOLDER else [f"paths.outputs={world}/{place}"]
                    command = ["-m", "ortpipe", *(word.format(number=100 + number) for word in words), *told]
                    spent.setdefault((name, place), []).append(_timed(command, folder))
            scripts = {
                "scikit-learn alone: imports and the fit": FIT,
                **{f"import {m}": f"import {m}" for m in IMPORTS},
            }
            for name, script in scripts.items():
                spent.setdefault((name, "here"), []).append(_timed(["-c", script], Path.cwd()))
    for (name, place), found in spent.items():
        wall, processor = (median(values) for values in zip(*found[1:], strict=True))
        aim = STARTS[name][1] if name in STARTS else None
        print(f"| {name} | {place} | {wall:.2f} s | {processor:.2f} s | {'–' if aim is None else f'{aim} s'} |")


def _timed(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Return the wall and processor seconds of a Python command in a checkout."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
