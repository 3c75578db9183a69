"""Predictions of a model for rows, with the labels and weights to compare them with."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx

from ortpipe.artifact import Arrays, Facts
from ortpipe.data.feeds import feed_inputs, name_head
from ortpipe.data.rows import RowSet
from ortpipe.errors import EvaluateError
from ortpipe.metrics import METRICS, UNWEIGHTED, Metric, part_of
from ortpipe.metrics.predictions import Compared, compared, truth
from ortpipe.runtime.session import Session


class Answers(NamedTuple):
    """The labels, predictions and weights of rows; labels and predictions by head."""

    labels: Arrays
    predictions: Arrays
    weight: np.ndarray | None

    def compared(self, facts: Facts, *, source: bool = False) -> dict[str, Compared]:
        """Return labels and predictions of each head, entry by entry.

        The source predicts values, not scores, whatever loss its network is then trained with.
        """
        entries = dict[str, Compared]()
        for head, part in facts.predictions.items():
            with name_head(head):
                part = dataclasses.replace(part, link=None) if source and part.link == "log" else part
                entries[head] = compared(part, self.labels[head], self.predictions[head], self.weight)
        return entries


def answers(
    sessions: Mapping[str, Session], model: onnx.ModelProto, facts: Facts, rows: RowSet, most: int
) -> dict[str, Answers]:
    """Return the predictions of sessions, such as one per state, for at most `most` rows."""
    parts = facts.predictions
    outputs = [part.prediction for part in parts.values()]
    labels, weights, predictions = list[Arrays](), list[np.ndarray](), {state: list[Arrays]() for state in sessions}
    for piece in rows.pieces(most):
        fed = feed_inputs(model, facts, piece)
        labels.append({head: truth(part, piece.of(head).label) for head, part in parts.items()})
        weights += [] if piece.sample_weight is None else [piece.sample_weight]
        for state, session in sessions.items():
            predictions[state].append(dict(zip(parts, session.predict(fed, outputs), strict=True)))
    weight = np.concatenate(weights) if weights else None
    return {state: Answers(_joined(labels), _joined(pieces), weight) for state, pieces in predictions.items()}


def _joined(pieces: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def of_head(names: Iterable[str], head: str) -> dict[str, Metric]:
    """Return the metrics of a head by name; "" is the prediction."""
    return {name: METRICS[name] for name in names if part_of(name)[0] == head}


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
