"""Send metrics to MLflow; the points of a series are inserted into a SQLite database in one statement."""

import sys
from collections.abc import Sequence
from typing import Any

from ortpipe.app.tracking.sqlite import database_of

MIN_INSERTED = 100  # fewer points are not worth a transaction
PER_CALL = 1000  # MLflow's limit
COLUMNS = ("key", "value", "timestamp", "run_uuid", "step", "is_nan")  # of MLflow's table, in the versions we know


def log_points(client: Any, run_id: str, points: Sequence[Any]) -> None:
    """Record points, MLflow's `Metric`s; a point that is recorded already is not duplicated.

    All but the last point of a series are rows of one table and written at once. The last points are sent through
    MLflow, which stores them as the latest values and checks that the run is active.
    """
    last = {point.key: point for point in sorted(points, key=lambda point: (point.step, point.timestamp))}
    earlier, latest = list[Any](), list[Any]()
    for point in points:
        (latest if point is last[point.key] or point.model_id is not None else earlier).append(point)
    if len(earlier) > MIN_INSERTED and _insert(client, run_id, earlier):
        points = latest
    for first in range(0, len(points), PER_CALL):
        _send(client, run_id, points[first : first + PER_CALL])


def _send(client: Any, run_id: str, points: Sequence[Any]) -> None:
    """Send points; print a warning for each that MLflow rejects, so that it takes no other along."""
    try:
        client.log_batch(run_id, metrics=points)
    except Exception as error:
        if getattr(error, "error_code", None) != "INVALID_PARAMETER_VALUE":
            raise
        if len(points) > 1:
            half = len(points) // 2
            _send(client, run_id, points[:half])
            _send(client, run_id, points[half:])
        else:
            reason = str(error).partition("\n")[0][:300]
            print(f"warning: MLflow rejects the metric {points[0].key!r}: {reason}", file=sys.stderr)


def _insert(client: Any, run_id: str, points: Sequence[Any]) -> bool:
    """Insert points and return True, if the store is a SQLite database whose table has the expected columns."""
    store = client._tracking_client.store
    if database_of(client.tracking_uri) is None or not hasattr(store, "engine"):
        return False
    rows = []
    for point in points:
        is_nan, value = store.sanitize_metric_value(point.value)
        rows.append((point.key, value, point.timestamp, run_id, point.step, is_nan))
    with store.engine.begin() as connection:
        run = connection.exec_driver_sql
        run("PRAGMA busy_timeout = 20000")  # as MLflow sets it: jobs write concurrently
        if {row[1] for row in run("PRAGMA table_info(metrics)")} != set(COLUMNS):
            return False
        places = ", ".join("?" * len(COLUMNS))
        run(f"INSERT INTO metrics ({', '.join(COLUMNS)}) VALUES ({places}) ON CONFLICT DO NOTHING", rows)
    return True
