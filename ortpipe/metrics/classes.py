"""Predictions of classes: probabilities, and the most likely class."""

from collections.abc import Callable
from typing import Any, Literal, NoReturn

import numpy as np

from ortpipe.errors import EvaluateError
from ortpipe.facts import Facts

Seen = Literal["sum", "unit", "outside"]
SUMS = {"float64": 1e-4, "float32": 1e-3}  # how far a row's probabilities may sum from 1 (they do if clipped)
HALF_SUM = 2e-2  # the same for float16 and bfloat16


def class_scores(facts: Facts, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return class indices [N, E…] and probabilities [N, E…, classes] of a prediction with its classes last."""
    values = prediction.astype(np.float64)
    raw = facts.logits == facts.prediction  # the model returns scores
    if facts.opposite:
        values = values / 2
    exclusive = facts.task == "multiclass" or (values.shape[-1] == 2 and facts.task == "binary")
    if not raw and (seen := look(prediction)) != "sum" and (exclusive or seen == "outside"):
        reject_probabilities(facts, values)
    if exclusive:
        probability = softmax(values) if raw else np.clip(values, 0, 1)
        probability = probability / probability.sum(axis=-1, keepdims=True)  # float32 rows sum to 1 ± 1e-7
        return _likeliest(probability, facts), probability
    p = sigmoid(values) if raw else np.clip(values, 0, 1)
    if facts.task == "multilabel":
        return (p > 0.5).astype(np.int64), p
    probability = np.concatenate([1 - p, p], axis=-1)
    return _likeliest(probability, facts), probability


def _likeliest(probability: np.ndarray, facts: Facts) -> np.ndarray:
    """Return the indices of the most likely classes, or of the second of two classes from the threshold on."""
    if facts.threshold is None:
        return probability.argmax(axis=-1)
    return (probability[..., 1] >= facts.threshold).astype(np.int64)


def look(prediction: np.ndarray) -> Seen:
    """Classify a prediction [N, …, K]: rows in [0, 1] that sum to 1, values in [0, 1], or values outside of it.

    >>> look(np.array([[0.5, 0.5], [1.0, 0.0]])), look(np.array([[0.5], [0.2]])), look(np.array([[-1.0, 1.0]]))
    ('sum', 'unit', 'outside')
    """
    allowed = SUMS.get(prediction.dtype.name, HALF_SUM)
    values = prediction.astype(np.float64)
    if not ((values >= -allowed) & (values <= 1 + allowed)).all():
        return "outside"
    sums = values.sum(axis=-1)
    return "sum" if values.ndim > 1 and values.shape[-1] > 1 and (abs(sums - 1) <= allowed).all() else "unit"


def sigmoid(z: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(−z))."""
    p: np.ndarray = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
    return p


def softmax(z: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    e: np.ndarray = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def reject_probabilities(facts: Facts, values: np.ndarray) -> NoReturn:
    """Raise for predictions that are no probabilities."""
    raise EvaluateError(
        "Probabilities must be in [0, 1], and sum to 1 per row for exclusive classes.",
        got=f"{facts.prediction!r}: values from {values.min():.6g} to {values.max():.6g}, sums of rows from "
        f"{values.sum(axis=-1).min():.6g} to {values.sum(axis=-1).max():.6g}",
        fix=f"Set {{@{facts.settings}.scores}}=logits if they are raw scores, or name probabilities inside the "
        "graph with {@convert.source.prediction}.",
    )


def readable(
    function: str | Callable[..., Any], truth: np.ndarray, probability: np.ndarray
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return probabilities and labels in the form that a function of sklearn.metrics reads, and more arguments."""
    scikit = isinstance(function, str) and function != "log_loss"
    if truth.ndim > 1:
        return probability, truth, {}
    if scikit and probability.shape[1] == 2:
        return probability[:, 1], truth, {}
    return probability, truth, {"labels": list(range(probability.shape[1]))} if isinstance(function, str) else {}


def average_precision(truth: np.ndarray, probability: np.ndarray, weight: np.ndarray | None) -> float:
    """Return the mean average precision of the classes that occur, of two classes that of the second; nan if none."""
    if truth.ndim == 1:
        occur = np.unique(truth)  # a class without rows has no curve, but scikit-learn scores it as 0
        occur = occur[occur == 1] if probability.shape[1] == 2 else occur
        probability, truth = probability[:, occur], (truth[:, None] == occur).astype(np.int64)
    if not truth.shape[1]:
        return float("nan")
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(truth, probability, sample_weight=weight))
