"""Metrics sent to MLflow; to a database of SQLite the many points of a series in one statement."""

from collections.abc import Sequence
from typing import Any

from ortpipe.app.tracking.sqlite import database_of

FEW = 100  # points that are not worth a transaction of their own
PER_CALL = 1000  # MLflow's limit
COLUMNS = ("key", "value", "timestamp", "run_uuid", "step", "is_nan")  # of MLflow's table when this was written


def log_points(client: Any, run_id: str, points: Sequence[Any]) -> None:
    """Record points, MLflow's `Metric`s; what was recorded before stays once.

    All but the last of a series are rows of one table, which are written at once. The last ones go MLflow's own way: it
    remembers them as the latest, and checks that the run goes on.
    """
    last = {point.key: point for point in sorted(points, key=lambda point: (point.step, point.timestamp))}
    earlier, rest = list[Any](), list[Any]()
    for point in points:
        (rest if point is last[point.key] or point.model_id is not None else earlier).append(point)
    if len(earlier) > FEW and _inserted(client, run_id, earlier):
        points = rest
    for first in range(0, len(points), PER_CALL):
        client.log_batch(run_id, metrics=points[first : first + PER_CALL])


def _inserted(client: Any, run_id: str, points: Sequence[Any]) -> bool:
    """Insert points if the store is a database of SQLite whose table has the columns that are known here."""
    store = client._tracking_client.store
    if database_of(client.tracking_uri) is None or not hasattr(store, "engine"):
        return False
    rows = []
    for point in points:
        is_nan, value = store.sanitize_metric_value(point.value)
        rows.append((point.key, value, point.timestamp, run_id, point.step, is_nan))
    with store.engine.begin() as connection:
        run = connection.exec_driver_sql
        run("PRAGMA busy_timeout = 20000")  # MLflow's own: jobs write side by side
        if {row[1] for row in run("PRAGMA table_info(metrics)")} != set(COLUMNS):
            return False
        places = ", ".join("?" * len(COLUMNS))
        run(f"INSERT INTO metrics ({', '.join(COLUMNS)}) VALUES ({places}) ON CONFLICT DO NOTHING", rows)
    return True
