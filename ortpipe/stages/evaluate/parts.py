"""A model's metrics on parts of the test rows: by the values of a column, and drawn anew for intervals."""

from collections.abc import Mapping

import numpy as np

from ortpipe.data.slices import parted
from ortpipe.errors import EvaluateError
from ortpipe.metrics import Metric
from ortpipe.metrics.predictions import Compared

PERCENTILES = 2.5, 97.5


def whole_rows(entries: Compared, rows: int) -> None:
    """Refuse predictions of rows' elements: they would be drawn, and parted, one by one."""
    if len(entries.truth) != rows:
        raise EvaluateError(
            "Intervals, and metrics by a column, are of models with one prediction per row.",
            got=f"{len(entries.truth)} predictions of {rows} rows",
            fix="Set evaluate.bootstrap=0 and evaluate.by=[].",
        )


def intervals(metrics: Mapping[str, Metric], entries: Compared, draws: int, seed: int) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric: percentiles of its values on rows drawn with replacement.

    What has no value on a draw, such as the ROC AUC of one class, does not count; what has none on half of them has no
    interval.
    """
    rng, count = np.random.default_rng(seed), len(entries.truth)
    values: dict[str, list[float]] = {name: [] for name in metrics}
    for _ in range(draws):
        drawn = _at(entries, rng.integers(0, count, count))
        for name, metric in metrics.items():
            values[name].append(metric(*drawn))
    known = {name: np.array(found)[np.isfinite(found)] for name, found in values.items()}
    return {name: np.percentile(v, PERCENTILES).tolist() for name, v in known.items() if 2 * len(v) > draws}


def by_value(metrics: Mapping[str, Metric], entries: Compared, column: np.ndarray) -> dict[str, dict[str, float]]:
    """Return each part's `rows` and metrics; those that have no value on it are left out."""
    found: dict[str, dict[str, float]] = {}
    for part, where in parted(column):
        mine = _at(entries, where)
        measured = {name: _value(metric, mine) for name, metric in metrics.items()}
        found[part] = {"rows": int(where.sum())} | {k: v for k, v in measured.items() if np.isfinite(v)}
    return found


def _value(metric: Metric, entries: Compared) -> float:
    try:
        return metric(*entries)
    except EvaluateError:  # scikit-learn's own word for a part with too few rows or classes
        return np.nan


def _at(entries: Compared, where: np.ndarray) -> Compared:
    return Compared(*(None if array is None else array[where] for array in entries))  # type: ignore[arg-type]
