"""What metrics compare: the labels of rows, and a model's output as labels and probabilities."""

from typing import Literal

import numpy as np

from ortpipe.artifact import Facts
from ortpipe.data.feeds import class_index
from ortpipe.data.rows import Rows
from ortpipe.errors import EvaluateError

Seen = Literal["sum", "unit", "outside"]
SUMS = {"float64": 1e-4, "float32": 1e-3}  # how far the probabilities of a row may sum from 1 (clipped ones do)
HALF_SUM = 2e-2  # likewise in float16 and bfloat16


def truth(facts: Facts, rows: Rows) -> np.ndarray:
    """Return class indices [N] of a classifier's rows, else labels [N, K]: int64 of many labels, float64 of values."""
    if facts.task in ("binary", "multiclass"):
        return class_index(facts, rows.label)
    label = rows.label if rows.label.ndim == 2 else rows.label.reshape(-1, 1)
    return label.astype(np.int64 if facts.task == "multilabel" else np.float64)


def predicted(facts: Facts, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return values [N, K], or class indices [N] and probabilities [N, classes], from `facts.prediction` [N, K]."""
    if not (finite := np.isfinite(prediction).reshape(len(prediction), -1).all(axis=1)).all():
        raise EvaluateError(
            "A metric reads finite predictions.",
            got=f"nan or inf in {(~finite).sum()} of {len(finite)} rows of {facts.prediction!r}",
            fix="Scale the inputs, or train with a lower rate (train.optimizer.lr).",
        )
    values = prediction.astype(np.float64)
    if facts.task == "regression":
        return values, None
    raw = facts.logits == facts.prediction  # the model ends in scores
    if facts.opposite:
        values = values / 2
    exclusive = facts.task == "multiclass" or (values.shape[1] == 2 and facts.task == "binary")
    if not raw and (seen := look(prediction)) != "sum" and (exclusive or seen == "outside"):
        raise EvaluateError(
            "A metric of probabilities reads values in [0, 1]; those of exclusive classes sum to 1 in each row.",
            got=f"{facts.prediction!r}: values from {values.min():.6g} to {values.max():.6g}, sums of rows from "
            f"{values.sum(axis=1).min():.6g} to {values.sum(axis=1).max():.6g}",
            fix="Set convert.source.scores=logits if they are raw scores, or export a model that gives probabilities.",
        )
    if exclusive:
        probability = _softmax(values) if raw else np.clip(values, 0, 1)
        probability = probability / probability.sum(axis=1, keepdims=True)  # float32 rows sum to 1 ± 1e-7
        return probability.argmax(axis=1), probability
    p = 1 / (1 + np.exp(-np.clip(values, -700, 700))) if raw else np.clip(values, 0, 1)
    if facts.task == "multilabel":
        return (p > 0.5).astype(np.int64), p
    probability = np.hstack([1 - p, p])
    return probability.argmax(axis=1), probability


def look(prediction: np.ndarray) -> Seen:
    """Return what a prediction [N, K] looks like: rows in [0, 1] that sum to 1, in [0, 1], or values outside.

    >>> look(np.array([[0.5, 0.5], [1.0, 0.0]])), look(np.array([[0.5], [0.2]])), look(np.array([[-1.0, 1.0]]))
    ('sum', 'unit', 'outside')
    """
    allowed = SUMS.get(prediction.dtype.name, HALF_SUM)
    values = prediction.astype(np.float64)
    if not ((values >= -allowed) & (values <= 1 + allowed)).all():
        return "outside"
    sums = values.reshape(len(values), -1).sum(axis=1)
    return "sum" if values.ndim == 2 and values.shape[1] > 1 and (abs(sums - 1) <= allowed).all() else "unit"


def _softmax(z: np.ndarray) -> np.ndarray:
    e: np.ndarray = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
