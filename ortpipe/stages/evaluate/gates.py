"""Metrics by which a model passes or fails: on rows or on a slice of them, and in comparison with another model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx

from ortpipe.artifact import Facts
from ortpipe.data.row_set import RowSet
from ortpipe.data.slices import column_of
from ortpipe.graph.core.protos import Weights
from ortpipe.metrics import METRICS, PAIRS, head_and_metric
from ortpipe.metrics.predictions import Compared, rows_at_most, value_of
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.evaluate.parts import PERCENTILES, at
from ortpipe.stages.evaluate.stage import answers

DRAWS = 500  # bootstrap samples of a comparison


class Scored(NamedTuple):
    """A model's predictions for rows, with the labels, by head."""

    entries: dict[str, Compared]
    rows: int

    def value(self, name: str, where: np.ndarray | None = None) -> float | None:
        """Return a metric, on some of the rows if `where` selects them; None if it has no value."""
        entries = self.entries[head_and_metric(name)[0]]
        value = value_of(METRICS[name], entries if where is None else at(entries, where))
        return value if np.isfinite(value) else None


def score(
    model: onnx.ModelProto, weights: Weights, facts: Facts, rows: RowSet, most: int, runtime: RuntimeConfig
) -> Scored:
    """Return the predictions of a model for at most `most` rows."""
    most = min(most, *(rows_at_most(part, rows.of(head)) for head, part in facts.predictions.items()))
    session = Session(model, runtime, weights=weights)
    [answer] = answers({"": session}, model, facts, rows, most).values()
    return Scored(answer.compared(facts), len(next(iter(answer.labels.values()))))


def slice_of(rows: RowSet, most: int, column: str, value: str) -> np.ndarray:
    """Return which of the rows that `score` reads have a value in a column, as text."""
    values = np.concatenate([column_of(piece, column, "require") for piece in rows.pieces(most)])
    return values.astype(str) == value


def paired(new: Scored, old: Scored, name: str, seed: int) -> Mapping[str, Any]:
    """Return a metric of two models on the same rows, the difference, and its 95 % interval.

    The interval holds percentiles of the difference on rows that are drawn with replacement, the same for both models
    (paired bootstrap; Efron and Tibshirani, 1993). It is None for elements and pairs, which depend on each other.
    """
    a, b = new.value(name), old.value(name)
    if a is None or b is None:
        return {"value": a, "champion": b, "difference": None, "interval": None}
    head, metric, rng = head_and_metric(name)[0], METRICS[name], np.random.default_rng(seed)
    entries, others = new.entries[head], old.entries[head]
    differences = []
    for _ in range(DRAWS if len(entries.truth) == new.rows and metric.tasks != PAIRS else 0):
        drawn = rng.integers(0, new.rows, new.rows)
        differences.append(value_of(metric, at(entries, drawn)) - value_of(metric, at(others, drawn)))
    finite = [difference for difference in differences if np.isfinite(difference)]
    interval = np.percentile(finite, PERCENTILES).tolist() if 2 * len(finite) > DRAWS else None
    return {"value": a, "champion": b, "difference": a - b, "interval": interval}
