"""A real sweep of eight small jobs, and what its folder says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

TINY = ("experiment=linear_regression", "train.epochs=2", "data.split.validation=0.2")
RATES = "train.optimizer.lr=0.002,0.02,0.1,10"  # the last one diverges
EIGHT = ("-m", *TINY, RATES, "seed=0,1")


def folder_of(where: Path) -> Path:
    """Return the folder of the latest sweep."""
    return sorted(where.glob("outputs/multiruns/*/*"))[-1]


def rows_of(sweep: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((sweep / "summary.csv").read_text().splitlines()))


def states_of(sweep: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    for file in sweep.glob("*/run.json"):
        status: dict[str, Any] = json.loads(file.read_text())
        found[status["job"]["number"]] = status["status"].lower()
    return dict(sorted(found.items()))


def runs_of(where: Path) -> list[Any]:
    """Return every run of MLflow's database."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{where}/outputs/mlflow.db")
    return list(client.search_runs([client.get_experiment_by_name("ortpipe").experiment_id]))


def parent_and_children(where: Path) -> tuple[Any, list[Any]]:
    """Return the run of the only sweep, and its jobs' runs."""
    runs = runs_of(where)
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == len(runs) - 1
    return parent, children
