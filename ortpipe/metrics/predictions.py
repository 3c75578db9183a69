"""What metrics compare: the labels of rows, and a model's output as labels and probabilities."""

from __future__ import annotations

import numpy as np

from ortpipe.artifact import Facts
from ortpipe.data.feeds import class_index
from ortpipe.data.rows import Rows


def truth(facts: Facts, rows: Rows) -> np.ndarray:
    """Return class indices [N] of a classifier's rows, else labels [N, K]: int64 of many labels, float64 of values."""
    if facts.task in ("binary", "multiclass"):
        return class_index(facts, rows.label)
    label = rows.label if rows.label.ndim == 2 else rows.label.reshape(-1, 1)
    return label.astype(np.int64 if facts.task == "multilabel" else np.float64)


def predicted(facts: Facts, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return values [N, K], or class indices [N] and probabilities [N, classes], from `facts.prediction` [N, K]."""
    prediction = prediction.astype(np.float64)
    if facts.task == "regression":
        return prediction, None
    raw = facts.logits == facts.prediction  # the model ends in scores
    if facts.task == "multiclass" or (facts.task == "binary" and prediction.shape[1] == 2):
        probability = _softmax(prediction) if raw else prediction
        probability = probability / probability.sum(axis=1, keepdims=True)  # float32 rows sum to 1 ± 1e-7
        return probability.argmax(axis=1), probability
    p = 1 / (1 + np.exp(-np.clip(prediction, -700, 700))) if raw else prediction
    if facts.task == "multilabel":
        return (p > 0.5).astype(np.int64), p
    probability = np.hstack([1 - p, p])
    return probability.argmax(axis=1), probability


def _softmax(z: np.ndarray) -> np.ndarray:
    e: np.ndarray = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
