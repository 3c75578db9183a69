"""Curves of a score against the truth: ROC, precision and recall, and how often what is said to be likely is true."""

import numpy as np

from ortpipe.metrics.predictions import Compared

ENTRIES = 500_000  # that are sorted; of more, as of the pixels of images, evenly spaced ones
POINTS = 201  # of a curve that is kept
BINS = 10  # of equal width, of probabilities
CLASSES = 12  # of more, none has a curve of its own


def curves(entries: Compared) -> dict[str, np.ndarray]:
    """Return what is drawn of probabilities: `roc/K`, `precision_recall/K` [P, 2] of class K, and `reliability` [B, 3].

    Of two classes the second alone has curves. Reliability is of its probability, or of several exclusive classes of
    the likeliest's: mean probability, share that is true, and weight of each bin that has entries.
    """
    if entries.probability is None or not len(entries.truth):
        return {}
    every = slice(None, None, -(-len(entries.truth) // ENTRIES))
    truth, probability = entries.truth[every], entries.probability[every]
    weight = None if entries.weight is None else entries.weight[every]
    w = np.ones(len(truth)) if weight is None else weight.astype(np.float64)
    several = truth.ndim > 1
    kinds = range(probability.shape[1]) if several or probability.shape[1] > 2 else [1]
    curves_by_name: dict[str, np.ndarray] = {}
    for k in kinds if len(kinds) <= CLASSES else ():
        true = truth[:, k] > 0 if several else truth == k
        if 0 < (w * true).sum() < w.sum():
            curves_by_name[f"roc/{k}"] = _thinned(roc(true, probability[:, k], w))
            curves_by_name[f"precision_recall/{k}"] = _thinned(precision_recall(true, probability[:, k], w))
    if not several and w.sum() > 0:
        two = probability.shape[1] == 2
        confidence = probability[:, 1] if two else probability.max(axis=1)
        curves_by_name["reliability"] = reliability(truth == (1 if two else probability.argmax(axis=1)), confidence, w)
    return curves_by_name


def roc(true: np.ndarray, score: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return [P, 2]: the share of the false, and of the true, whose score is at least each threshold, from none on."""
    hits, false = _counts(true, score, weight)
    return np.stack([np.r_[0, false] / false[-1], np.r_[0, hits] / hits[-1]], axis=1)


def precision_recall(true: np.ndarray, score: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return [P, 2]: recall and precision at each threshold, from the highest on; before it they are 0 and 1."""
    hits, false = _counts(true, score, weight)
    positives = hits + false
    precision = np.divide(hits, positives, out=np.zeros_like(hits), where=positives > 0)
    return np.stack([np.r_[0, hits / hits[-1]], np.r_[1, precision]], axis=1)


def reliability(true: np.ndarray, probability: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return [B, 3]: mean probability, share of the true and weight of bins of equal width that have any weight."""
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], probability)
    total, confidence, hits = (np.bincount(place, weight * v, BINS) for v in (np.ones(len(true)), probability, true))
    filled = total > 0
    return np.stack([confidence[filled] / total[filled], hits[filled] / total[filled], total[filled]], axis=1)


def _counts(true: np.ndarray, score: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of the true and of the false at or above each distinct score, the highest first."""
    order = np.argsort(-score, kind="stable")
    ends = np.r_[np.flatnonzero(np.diff(score[order])), len(score) - 1]
    return np.cumsum((weight * true)[order])[ends], np.cumsum((weight * ~true)[order])[ends]


def _thinned(curve: np.ndarray) -> np.ndarray:
    if len(curve) <= POINTS:
        return curve
    points: np.ndarray = curve[np.linspace(0, len(curve) - 1, POINTS).round().astype(np.int64)]
    return points
