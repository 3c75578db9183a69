"""Curves of scores against the truth: ROC, precision and recall, and reliability."""

import numpy as np

from ortpipe.metrics.predictions import Compared

ENTRIES = 500_000  # the most entries that are sorted; more (such as pixels) are sampled at even distances
POINTS = 201  # points of a stored curve
BINS = 10  # of probabilities, of equal width
CLASSES = 12  # with more classes, curves per class are omitted


def curves(entries: Compared) -> dict[str, np.ndarray]:
    """Return the curves of probabilities: `roc/K`, `precision_recall/K` [P, 2] for class K, `reliability` [B, 3].

    With two classes, only the second one has curves. Reliability uses its probability or, with several exclusive
    classes, that of the most likely one: mean probability, true share and weight of each bin that is not empty.
    """
    if entries.probability is None or entries.truth.dtype.kind == "f" or not len(entries.truth):
        return {}
    from sklearn.metrics import precision_recall_curve, roc_curve

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
            false, hits, _ = roc_curve(true, probability[:, k], sample_weight=w, drop_intermediate=False)
            precision, recall, _ = precision_recall_curve(true, probability[:, k], sample_weight=w)
            curves_by_name[f"roc/{k}"] = _thinned(np.stack([false, hits], axis=1))
            curves_by_name[f"precision_recall/{k}"] = _thinned(np.stack([recall[::-1], precision[::-1]], axis=1))
    if not several and w.sum() > 0:
        two = probability.shape[1] == 2
        confidence = probability[:, 1] if two else probability.max(axis=1)
        curves_by_name["reliability"] = reliability(truth == (1 if two else probability.argmax(axis=1)), confidence, w)
    return curves_by_name


def reliability(true: np.ndarray, probability: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return [B, 3]: mean probability, true share and weight of the bins of equal width whose weight is not 0."""
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], probability)
    total, confidence, hits = (np.bincount(place, weight * v, BINS) for v in (np.ones(len(true)), probability, true))
    filled = total > 0
    return np.stack([confidence[filled] / total[filled], hits[filled] / total[filled], total[filled]], axis=1)


def calibration_error(truth: np.ndarray, probability: np.ndarray, weight: np.ndarray | None) -> float:
    """Return Σ w·|share − confidence| / Σ w over bins of the most likely class's probability (Guo et al., 2017)."""
    w = np.ones(len(truth)) if weight is None else weight.astype(np.float64)
    confidence, share, total = reliability(truth == probability.argmax(axis=1), probability.max(axis=1), w).T
    return float(total @ abs(share - confidence) / total.sum()) if total.sum() else float("nan")


def _thinned(curve: np.ndarray) -> np.ndarray:
    if len(curve) <= POINTS:
        return curve
    points: np.ndarray = curve[np.linspace(0, len(curve) - 1, POINTS).round().astype(np.int64)]
    return points
