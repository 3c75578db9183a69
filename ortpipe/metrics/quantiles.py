"""Metrics of several predicted quantiles: the pinball loss, and the coverage of the interval between the outer ones."""

import math

import numpy as np


def pinball_loss(
    truth: np.ndarray, predicted: tuple[np.ndarray, np.ndarray], weight: np.ndarray | None, level: float = math.nan
) -> float:
    """Return the weighted mean of max(q·d, (q − 1)·d), d = y − ŷ, of the quantile `level`; nan: the mean over all.

    Of one quantile it is scikit-learn's `mean_pinball_loss`.

    Args:
        truth: [N, 1].
        predicted: values and quantiles, both [N, K].
        weight: [N], or None.
        level: one of the quantiles.

    >>> predicted = np.array([[1.0, 3.0]]), np.array([[0.25, 0.5]])
    >>> pinball_loss(np.array([[2.0]]), predicted, None, 0.25), pinball_loss(np.array([[2.0]]), predicted, None)
    (0.25, 0.375)
    """
    values, levels = predicted
    difference = truth - values
    losses = np.average(np.maximum(levels * difference, (levels - 1) * difference), axis=0, weights=weight)
    chosen = losses if math.isnan(level) else losses[levels[0] == level]
    return float(chosen.mean()) if len(chosen) else math.nan


def coverage(truth: np.ndarray, values: np.ndarray, weight: np.ndarray | None) -> float:
    """Return the share of labels from the lowest to the highest predicted quantile; ideally their difference.

    >>> coverage(np.array([[2.0], [5.0]]), np.array([[1.0, 3.0], [1.0, 3.0]]), None)
    0.5
    """
    inside = (truth[:, 0] >= values[:, 0]) & (truth[:, 0] <= values[:, -1])
    return float(np.average(inside, weights=weight))
