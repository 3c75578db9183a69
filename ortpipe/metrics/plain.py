"""The usual metrics by NumPy, of the plain case: scikit-learn's own steps and numbers, without its import of a second.

Each has the name and the keywords of its function in sklearn.metrics. Rows have no weights here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

MOST = 2**20  # classes, each of which is counted


def of(name: str, truth: np.ndarray, read: np.ndarray, params: Mapping[str, Any]) -> float | None:
    """Return what a function of sklearn.metrics gives without weights, bit for bit; None where it has to be asked."""
    function = FUNCTIONS.get(name)
    if function is None or not _is_plain(truth) or not _is_plain(read):
        return None
    return function(truth, read, **params)


def _is_plain(array: np.ndarray) -> bool:
    """Return whether there are at least two finite float64 or int64 rows, of one or two dimensions."""
    is_numeric = array.dtype in (np.float64, np.int64) and array.ndim in (1, 2) and len(array) > 1 and array.size > 0
    return bool(is_numeric and np.isfinite(array).all())


def accuracy_score(truth: np.ndarray, label: np.ndarray) -> float | None:
    """The share of rows whose label, or whose every label, is right."""
    if not _are_labels(truth, label):
        return None
    return float(np.average(truth == label if truth.ndim == 1 else (truth == label).all(axis=1)))


def f1_score(truth: np.ndarray, label: np.ndarray, average: str, zero_division: float) -> float | None:
    """2·hits / (true + predicted), the mean over labels."""
    return _mean_share(truth, label, average, zero_division, lambda hits, predicted, true: (2 * hits, true + predicted))


def precision_score(truth: np.ndarray, label: np.ndarray, average: str, zero_division: float) -> float | None:
    """Hits / predicted, the mean over labels."""
    return _mean_share(truth, label, average, zero_division, lambda hits, predicted, true: (hits, predicted))


def recall_score(truth: np.ndarray, label: np.ndarray, average: str, zero_division: float) -> float | None:
    """Hits / true, the mean over labels."""
    return _mean_share(truth, label, average, zero_division, lambda hits, predicted, true: (hits, true))


def _mean_share(
    truth: np.ndarray,
    label: np.ndarray,
    average: str,
    zero_division: float,
    share: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> float | None:
    """Return the mean of a share over labels; of one label a row, those that occur."""
    if average != "macro" or not _are_labels(truth, label):
        return None
    if truth.ndim == 1:
        count = int(max(truth.max(), label.max())) + 1
        hits, predicted, true = (np.bincount(rows, minlength=count) for rows in (truth[truth == label], label, truth))
        occur = predicted + true > 0
        hits, predicted, true = hits[occur], predicted[occur], true[occur]
    else:
        hits, predicted, true = (np.count_nonzero(rows, axis=0) for rows in (truth * label, label, truth))
    part, total = share(*(counts.astype(np.float64) for counts in (hits, predicted, true)))
    return float(np.mean(np.divide(part, total, out=np.full_like(part, zero_division), where=total != 0)))


def _are_labels(truth: np.ndarray, label: np.ndarray) -> bool:
    """Return whether both are indices of classes, or 0 and 1 of many labels."""
    if truth.shape != label.shape or truth.dtype != np.int64 or label.dtype != np.int64:
        return False
    if truth.ndim == 1:
        return bool(min(truth.min(), label.min()) >= 0 and max(truth.max(), label.max()) < MOST)
    return truth.shape[1] > 1 and all(np.isin(rows, (0, 1)).all() for rows in (truth, label))


def log_loss(truth: np.ndarray, probability: np.ndarray, labels: list[int]) -> float | None:
    """−log p of the true class, the mean over rows."""
    count = len(labels)
    if not _are_classes(truth, probability, count):
        return None
    least = np.finfo(np.float64).eps
    one_hot = (truth[:, None] == np.arange(count)).astype(np.float64)
    logs = np.where(one_hot == 0.0, 0.0, one_hot * np.log(np.clip(probability, least, 1 - least)))
    return float(np.average(-np.sum(logs, axis=1)))


def _are_classes(truth: np.ndarray, probability: np.ndarray, count: int) -> bool:
    fits = truth.ndim == 1 and truth.dtype == np.int64 and probability.shape == (len(truth), count) and count > 1
    if not fits or probability.dtype != np.float64 or truth.min() < 0 or truth.max() >= count:
        return False
    sums = np.abs(probability.sum(axis=1) - 1) < 1e-9
    return bool(probability.min() >= 0 and probability.max() <= 1 and sums.all())


def roc_auc_score(
    truth: np.ndarray, score: np.ndarray, multi_class: str, labels: list[int] | None = None
) -> float | None:
    """The area under the ROC curve of two classes, by trapezoids between its corners."""
    if truth.ndim != 1 or score.ndim != 1 or len(truth) != len(score) or score.dtype != np.float64:
        return None
    if not (truth.dtype == np.int64 and truth.min() == 0 and truth.max() == 1):
        return None
    order = np.argsort(-score, kind="stable")
    ends = np.r_[np.flatnonzero(np.diff(score[order])), len(score) - 1]
    hits = np.cumsum(truth[order].astype(np.float64))[ends]
    false = 1 + ends.astype(np.float64) - hits
    if len(ends) > 2:
        corners = np.r_[True, np.logical_or(np.diff(false, 2), np.diff(hits, 2)), True]
        hits, false = hits[corners], false[corners]
    hits, false = np.r_[0.0, hits], np.r_[0.0, false]
    return float(np.trapezoid(hits / hits[-1], false / false[-1]))


def mean_squared_error(truth: np.ndarray, value: np.ndarray) -> float | None:
    """(y − ŷ)², the mean over rows, then outputs."""
    pair = _values(truth, value)
    return None if pair is None else float(np.average(np.average((pair[0] - pair[1]) ** 2, axis=0)))


def root_mean_squared_error(truth: np.ndarray, value: np.ndarray) -> float | None:
    """The root of each output's mean of (y − ŷ)², the mean over outputs."""
    pair = _values(truth, value)
    return None if pair is None else float(np.average(np.sqrt(np.average((pair[0] - pair[1]) ** 2, axis=0))))


def mean_absolute_error(truth: np.ndarray, value: np.ndarray) -> float | None:
    """|y − ŷ|, the mean over rows, then outputs."""
    pair = _values(truth, value)
    return None if pair is None else float(np.average(np.average(np.abs(pair[1] - pair[0]), axis=0)))


def r2_score(truth: np.ndarray, value: np.ndarray) -> float | None:
    """1 − Σ(y − ŷ)² / Σ(y − ȳ)², the mean over outputs; without residuals 1, else of equal labels 0."""
    pair = _values(truth, value)
    if pair is None:
        return None
    residuals = np.sum((pair[0] - pair[1]) ** 2, axis=0)
    deviations = np.sum((pair[0] - np.average(pair[0], axis=0)) ** 2, axis=0)
    scores = np.ones(len(residuals))
    scores[(residuals != 0) & (deviations == 0)] = 0.0
    valid = (residuals != 0) & (deviations != 0)
    scores[valid] = 1 - residuals[valid] / deviations[valid]
    return float(np.average(scores))


def _values(truth: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    if truth.dtype != np.float64 or value.dtype != np.float64 or len(truth) != len(value):
        return None
    truth, value = truth.reshape(len(truth), -1), value.reshape(len(value), -1)
    return (truth, value) if truth.shape == value.shape else None


FUNCTIONS: Mapping[str, Callable[..., float | None]] = {
    function.__name__: function
    for function in (
        *(accuracy_score, f1_score, precision_score, recall_score, log_loss, roc_auc_score),
        *(mean_squared_error, root_mean_squared_error, mean_absolute_error, r2_score),
    )
}
