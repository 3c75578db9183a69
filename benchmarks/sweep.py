"""One sweep with and without the store and tracking, side by side: `python -m benchmarks.sweep`.

The sweep is of the digits experiment over two optimizers, rates and seeds, four jobs at a time (the extra [joblib]). It
runs whole in every setting, each in a folder of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDS = "multiruns/*/*/*/run.json"
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
SETTINGS = {  # name → what it adds, and whose folder it uses
    "store, MLflow": ([], "first"),
    "the same again": ([], "first"),
    "store, no tracking": (["recorder=none"], "second"),
    "no store, no tracking": (["recorder=none", "paths.cache=null"], "third"),
    "no store, MLflow": (["paths.cache=null"], "fourth"),
}


def main() -> None:
    """Print a row per setting: wall time, and how many stages were computed of how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, default=len(RATES), help="how many learning rates")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--launcher", default="joblib", help="or fork")
    given = parser.parse_args()
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


if __name__ == "__main__":
    main()
