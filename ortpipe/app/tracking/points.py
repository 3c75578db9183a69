"""Send metrics to MLflow."""

import sys
from collections.abc import Sequence
from typing import Any

PER_CALL = 1000  # MLflow's limit


def log_points(client: Any, run_id: str, points: Sequence[Any]) -> None:
    """Record points, MLflow's `Metric`s; a point that is recorded already is not duplicated."""
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
