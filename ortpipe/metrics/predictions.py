"""The input of metrics: the labels of rows, and a model's output as labels and probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ortpipe.artifact import Facts
from ortpipe.doors import later
from ortpipe.errors import EvaluateError
from ortpipe.metrics import METRICS, UNWEIGHTED, Metric, head_and_metric

if TYPE_CHECKING:
    from ortpipe.data.labels import class_index
    from ortpipe.data.row_set import RowSet
    from ortpipe.metrics.classes import class_scores
    from ortpipe.metrics.elements import check_shapes, classes_last, of_elements, reject_infinite
else:
    later(__name__)

NUMBERS = 50_000_000  # the most values of a prediction that a metric is computed on


class Compared(NamedTuple):
    """The arrays that a metric compares, with one entry per row, or per element (step, pixel) in row order."""

    truth: np.ndarray  # class indices [M], else labels [M, K]
    label: np.ndarray  # predicted, in the same form
    probability: np.ndarray | None  # [M, classes]; of quantiles and survival, the level of each column
    weight: np.ndarray | None  # [M]: each entry has its row's


def truth(facts: Facts, label: np.ndarray) -> np.ndarray:
    """Return class indices [N] of a classifier's labels, else labels [N, K]: int64 for many labels, float64 for values.

    Labels of elements keep their shape [N, …]. Ignored entries have index −1, or nan in float64.
    """
    if facts.task in ("binary", "multiclass"):
        return class_index(facts, label)
    label = label.reshape(-1, 1) if label.ndim == 1 else label
    if facts.padding is not None:
        return np.where(label == facts.padding, np.nan, label.astype(np.float64))
    return label.astype(np.int64 if facts.task == "multilabel" else np.float64)


def rows_at_most(facts: Facts, rows: RowSet) -> int:
    """Return the most rows whose elements' scores a metric can read at once."""
    if facts.class_axis is None:
        return NUMBERS
    return max(1, NUMBERS // (rows.head(1).label.size * max(1, len(facts.classes or ()))))


def compared(facts: Facts, truth: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> Compared:
    """Return the entries of `truth` and of `facts.prediction` for the same rows.

    Raises:
        EvaluateError: their shapes differ, or the prediction contradicts the facts.
    """
    label, probability = predicted(facts, prediction)
    if facts.blank is not None or facts.class_axis is not None or facts.padding is not None:
        return of_elements(facts, Compared(truth, label, probability, weight))
    if label.shape[1:] != truth.shape[1:]:
        check_shapes(facts, truth, label)
    return Compared(truth, label, probability, weight)


def predicted(facts: Facts, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return values [N, E…, K], or class indices [N, E…] and probabilities [N, E…, classes].

    `facts.prediction` is interpreted per element of a row; a prediction [N, K] has no axes E….
    """
    if not np.isfinite(prediction).all():
        reject_infinite(facts, prediction)
    prediction = prediction if facts.class_axis is None else classes_last(prediction, facts.class_axis)
    values = prediction.astype(np.float64)
    if facts.task == "regression":
        levels = np.broadcast_to(facts.levels, values.shape) if facts.levels else None
        return np.exp(np.clip(values, -700, 700)) if facts.link == "log" else values, levels
    return class_scores(facts, prediction)


def of_head(names: Iterable[str], head: str) -> dict[str, Metric]:
    """Return the metrics of a head by name; "" is the prediction."""
    return {name: METRICS[name] for name in names if head_and_metric(name)[0] == head}


def measured(
    entries_by_head: Mapping[str, Compared], names: Sequence[str], *, lenient: bool = False
) -> dict[str, float]:
    """Return each metric, and the one that counts each row once if rows have weights; see `value_of` for `lenient`."""
    values = dict[str, float]()
    for head, entries in entries_by_head.items():
        for name, metric in of_head(names, head).items():
            for kind in ("",) if entries.weight is None else ("", UNWEIGHTED):
                weighted = entries._replace(weight=None) if kind else entries
                values[f"{name}{kind}"] = value_of(metric, weighted) if lenient else metric(*weighted)
    return values


def value_of(metric: Metric, entries: Compared) -> float:
    """Return the value of a metric, nan if scikit-learn rejects the entries: too few rows or classes."""
    try:
        return metric(*entries)
    except EvaluateError:
        return np.nan
