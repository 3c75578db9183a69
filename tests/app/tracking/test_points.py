"""A series is recorded as MLflow itself records it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ortpipe.app.tracking import points as module
from ortpipe.app.tracking.client import client_at
from ortpipe.app.tracking.points import log_points
from ortpipe.app.tracking.sqlite import uri_of


def rows(database: Path, run: str) -> list[Any]:
    """Return what the database holds of a run's metrics, in the order of its tables."""
    told = []
    with closing(sqlite3.connect(database)) as connection:
        for table in ("metrics", "latest_metrics"):
            columns = "key, value, typeof(value), timestamp, step, is_nan"
            told += connection.execute(f"SELECT {columns} FROM {table} WHERE run_uuid = ?", (run,)).fetchall()
        told += connection.execute(
            "SELECT metric_name, metric_value, metric_step FROM logged_model_metrics WHERE run_id = ?", (run,)
        ).fetchall()
    return told


def test_points_are_the_rows_that_mlflow_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.entities import Metric

    database = tmp_path / "a.db"
    client = client_at(uri_of(database))
    experiment = client.create_experiment("points")
    special = {3: float("nan"), 5: float("inf"), 6: -float("inf"), 7: 1e-320}
    steps = [Metric("loss/step", special.get(step, 1 / step), 1000 + step // 4, step) for step in range(1, 301)]
    ones = [Metric("wall_seconds/train", 1.5, 2000, 0), Metric("loss/train", float("nan"), 2000, 2)]
    given = [*steps, steps[4], *ones, Metric("loss/train", 0.5, 1000, 1)]
    runs = [client.create_run(experiment).info.run_id for _ in range(3)]
    for i in range(0, len(given), 1000):
        client.log_batch(runs[0], metrics=given[i : i + 1000])
    sent = []
    log_batch = type(client).log_batch
    monkeypatch.setattr(type(client), "log_batch", lambda *a, **k: (sent.append(len(k["metrics"])), log_batch(*a, **k)))
    log_points(client, runs[1], given)
    log_points(client, runs[1], given)  # a record that broke off
    assert sent == [3, 3]
    monkeypatch.setattr(module, "COLUMNS", ("key",))  # a later MLflow's table
    log_points(client, runs[2], given)
    assert sent[2:] == [len(given)]
    theirs = rows(database, runs[0])
    assert len(theirs) == 303 + 3
    assert sorted(theirs) == sorted(rows(database, runs[1])) == sorted(rows(database, runs[2]))
    for key in ("loss/step", "loss/train"):
        one, other = ([(p.step, str(p.value)) for p in client.get_metric_history(run, key)] for run in runs[:2])
        assert one == other
