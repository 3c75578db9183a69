"""Metrics of retrieval: for the first embedding of each row, the rank of a match among the second ones of all rows."""

import numpy as np

BLOCK = 1024  # rows that are compared with all others at a time


def hit_rate(truth: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None, k: int = 1) -> float:
    """Return the share of rows with a match among the k nearest second embeddings by cosine (recall at k).

    >>> predicted = np.array([[1.0, 0, 0.9, 0.1], [0, 1, 1, 1], [1, 1, 0, 1]])
    >>> truth = np.array([[0.0], [1], [2]])
    >>> hit_rate(truth, predicted, None), hit_rate(truth, predicted, None, k=2)
    (0.3333333333333333, 0.6666666666666666)
    """
    return float(np.average(ranks(truth, predicted) <= k, weights=weight))


def mean_reciprocal_rank(truth: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None) -> float:
    """Return the mean of 1/rank of each row's nearest match."""
    return float(np.average(1 / ranks(truth, predicted), weights=weight))


def ranks(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the rank of each row's nearest match, from 1, among the second embeddings of all rows.

    Other rows that are as near count as nearer, so that equal embeddings have the last rank.

    Args:
        truth: the number of each row's pair [N, 1]; rows of equal numbers match.
        predicted: two embeddings, one after the other [N, 2·K].
    """
    halves = np.split(predicted, 2, axis=1)
    a, b = (half / np.maximum(np.linalg.norm(half, axis=1, keepdims=True), 1e-12) for half in halves)
    best_ranks = np.zeros(len(truth), np.int64)
    for start in range(0, len(truth), BLOCK):
        rows = slice(start, start + BLOCK)
        similar, matches = a[rows] @ b.T, truth[rows] == truth.T
        best = np.where(matches, similar, -np.inf).max(axis=1, keepdims=True)
        best_ranks[rows] = 1 + ((similar >= best) & ~matches).sum(axis=1)
    return best_ranks
