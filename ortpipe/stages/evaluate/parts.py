"""A model's metrics on parts of the test rows: by a column's values, and on bootstrap samples for intervals."""

from collections.abc import Mapping

import numpy as np

from ortpipe.data.slices import slice_by_value
from ortpipe.errors import EvaluateError
from ortpipe.metrics import Metric
from ortpipe.metrics.predictions import Compared
from ortpipe.stages.evaluate.answers import value_of

PERCENTILES = 2.5, 97.5


def check_one_per_row(entries: Compared, rows: int) -> None:
    """Raise EvaluateError for predictions per element: they would be sampled and split independently of their row."""
    if len(entries.truth) != rows:
        raise EvaluateError(
            "Intervals, and metrics by a column, need a model with one prediction per row.",
            got=f"{len(entries.truth)} predictions of {rows} rows",
            fix="Set {at}bootstrap=0 and {at}by=[].",
        )


def intervals(metrics: Mapping[str, Metric], entries: Compared, draws: int, seed: int) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric: percentiles of its values on rows drawn with replacement.

    Draws without a value, such as the ROC AUC of one class, do not count; a metric without a value on half of the draws
    has no interval.
    """
    rng, count = np.random.default_rng(seed), len(entries.truth)
    values: dict[str, list[float]] = {name: [] for name in metrics}
    for _ in range(draws):
        drawn = _at(entries, rng.integers(0, count, count))
        for name, metric in metrics.items():
            values[name].append(metric(*drawn))
    finite = {name: np.array(samples)[np.isfinite(samples)] for name, samples in values.items()}
    return {name: np.percentile(v, PERCENTILES).tolist() for name, v in finite.items() if 2 * len(v) > draws}


def by_value(metrics: Mapping[str, Metric], entries: Compared, column: np.ndarray) -> dict[str, dict[str, float]]:
    """Return each part's `rows` and metrics, without metrics that have no value on it."""
    by_part: dict[str, dict[str, float]] = {}
    for part, where in slice_by_value(column):
        part_entries = _at(entries, where)
        measured = {name: value_of(metric, part_entries) for name, metric in metrics.items()}
        by_part[part] = {"rows": int(where.sum())} | {k: v for k, v in measured.items() if np.isfinite(v)}
    return by_part


def _at(entries: Compared, where: np.ndarray) -> Compared:
    return Compared(*(None if array is None else array[where] for array in entries))  # type: ignore[arg-type]
