"""Sequences of class indices [N, L], padded with −1: decode steps, and compare."""

import numpy as np


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
