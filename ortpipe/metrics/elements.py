"""Predictions of elements (steps, pixels), of sequences, and with padding; errors about predictions."""

import math
from typing import NoReturn

import numpy as np

from ortpipe.data.labels import fit_label
from ortpipe.errors import EvaluateError
from ortpipe.facts import Facts
from ortpipe.metrics.predictions import Compared


def of_elements(facts: Facts, compared: Compared) -> Compared:
    """Return one entry per element without padding, with the weight of its row, or per sequence.

    Sequences are class indices [N, …], −1 after the end.
    """
    truth, label, probability, weight = compared
    if facts.blank is not None:
        return Compared(ended(truth, facts.blank), decoded(label, facts.blank), None, weight)
    if facts.class_axis is not None:
        truth = fit_label(facts, truth, label.shape)
    if label.shape[1:] != truth.shape[1:]:
        check_shapes(facts, truth, label)
    entry = () if facts.task in ("binary", "multiclass") else label.shape[-1:]
    elements = label.shape[1 : label.ndim - len(entry)]
    if elements:
        weight = None if weight is None else np.repeat(weight, math.prod(elements))
        probability = None if probability is None else probability.reshape(-1, probability.shape[-1])
        truth, label = truth.reshape(-1, *entry), label.reshape(-1, *entry)
    if facts.padding is None:
        return Compared(truth, label, probability, weight)
    counts = truth >= 0 if not entry else ~np.isnan(truth).any(axis=-1)
    arrays = (None if array is None else array[counts] for array in (truth, label, probability, weight))
    result = Compared(*arrays)  # type: ignore[arg-type]
    return result._replace(truth=result.truth.astype(np.int64)) if facts.task == "multilabel" else result


def classes_last(array: np.ndarray, axis: int | None) -> np.ndarray:
    """Return a prediction as [N, E…, K], where `axis` is the axis of K (see `Facts.class_axis`).

    >>> classes_last(np.zeros((5, 3, 8, 8)), 1).shape, classes_last(np.zeros((5, 8, 8)), 3).shape
    ((5, 8, 8, 3), (5, 8, 8, 1))
    """
    if axis is None:
        return array
    return array[..., None] if axis == array.ndim else np.moveaxis(array, axis, -1)


def check_shapes(facts: Facts, truth: np.ndarray, label: np.ndarray) -> None:
    """Raise for labels of another shape than the predictions, unless these are quantiles or survival."""
    if facts.link not in (None, "log"):
        return
    raise EvaluateError(
        "Labels must have the width of the model's prediction.",
        got=f"test labels of shape {truth.shape}, predictions of shape {label.shape}",
        fix="Choose other labels or another model.",
    )


def reject_infinite(facts: Facts, prediction: np.ndarray) -> NoReturn:
    """Raise for predictions of nan or infinity."""
    finite = np.isfinite(prediction).reshape(len(prediction), -1).all(axis=1)
    raise EvaluateError(
        "A metric needs finite predictions.",
        got=f"nan or inf in {(~finite).sum()} of {len(finite)} rows of {facts.prediction!r}",
        fix="Scale the inputs, or train with a lower rate ({@train.optimizer.lr}).",
    )


def ended(label: np.ndarray, blank: int) -> np.ndarray:
    """Return labels set to −1 from the first blank or padding (−1) on.

    >>> ended(np.array([[1, 2, 0], [3, -1, 2]]), blank=0).tolist()
    [[1, 2, -1], [3, -1, -1]]
    """
    label = label.reshape(len(label), -1)
    return np.where(np.logical_and.accumulate((label >= 0) & (label != blank), axis=1), label, -1)


def decoded(steps: np.ndarray, blank: int) -> np.ndarray:
    """Return the sequences read from the most likely classes of T steps [N, T]: merge repeats, drop blanks.

    >>> decoded(np.array([[0, 1, 1, 0, 1, 2], [3, 3, 3, 3, 3, 3]]), blank=0).tolist()
    [[1, 1, 2, -1, -1, -1], [3, -1, -1, -1, -1, -1]]
    """
    before = np.hstack([np.full((len(steps), 1), blank), steps[:, :-1]])
    is_read = (steps != blank) & (steps != before)
    order = np.argsort(~is_read, axis=1, kind="stable")
    return np.take_along_axis(np.where(is_read, steps, -1), order, axis=1)


def distance(truth: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return the number of insertions, deletions and substitutions between two sequences (Levenshtein), [N].

    >>> distance(np.array([[1, 2, 3], [1, -1, -1]]), np.array([[1, 3, -1], [-1, -1, -1]])).tolist()
    [1, 1]
    """
    rows, lengths = np.arange(len(truth)), (truth >= 0).sum(axis=1)
    label_lengths, width = (label >= 0).sum(axis=1), np.arange(label.shape[1] + 1)
    line = np.tile(width, (len(truth), 1))  # distances from the first i of truth to the first j of label
    distances = line[rows, label_lengths]
    for i in range(truth.shape[1]):
        changed = np.minimum(line[:, 1:] + 1, line[:, :-1] + (label != truth[:, i : i + 1]))
        line = np.minimum.accumulate(np.hstack([line[:, :1] + 1, changed]) - width, axis=1) + width
        distances = np.where(lengths == i + 1, line[rows, label_lengths], distances)
    return distances


def error_rate(truth: np.ndarray, label: np.ndarray, weight: np.ndarray | None) -> float:
    """Return Σ wᵢ·distanceᵢ / Σ wᵢ·lengthᵢ: edits per label; nan if there are no labels."""
    w = np.ones(len(truth)) if weight is None else weight
    total = (w * (truth >= 0).sum(axis=1)).sum()
    return float((w * distance(truth, label)).sum() / total) if total else float("nan")


def accuracy(truth: np.ndarray, label: np.ndarray, weight: np.ndarray | None) -> float:
    """Return the share of rows without any error."""
    return float(np.average(distance(truth, label) == 0, weights=weight))
