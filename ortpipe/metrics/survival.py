"""Metrics of survival analysis: Harrell's concordance and the integrated Brier score, with Kaplan and Meier's estimate.

Labels [N, 2] are a time and an event: 1, or 0 if the row is censored at that time.
"""

from collections.abc import Callable

import numpy as np

BLOCK = 256  # rows whose pairs are compared one by one


def concordance(truth: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None) -> float:
    """Return the share of comparable pairs in which the row with the earlier event has the higher risk (Harrell, 1982).

    A pair is comparable if the earlier time is that of an event, or if of two equal times one is that of an event.
    Equal risks count half; a pair has the product of its rows' weights. It takes O(N·log² N) operations.

    Args:
        truth: times and events [N, 2].
        predicted: risks [N, 1], or probabilities of survival [N, K], whose negative sum is the risk.
        weight: [N], or None.

    Returns:
        The index, 0.5 for constant risks; nan without a comparable pair.

    >>> truth = np.array([[1.0, 1], [2, 1], [3, 0]])
    >>> concordance(truth, np.array([[3.0], [2], [1]]), None), concordance(truth, np.array([[1.0], [1], [1]]), None)
    (1.0, 0.5)
    """
    risk = predicted[:, 0] if predicted.shape[1] == 1 else -predicted.sum(axis=1)
    order = np.lexsort((-truth[:, 1], truth[:, 0]))  # at equal times, events before censored rows
    time, event = truth[order].T
    rank = np.concatenate([[0], np.cumsum((np.diff(time) != 0) | (np.diff(event) != 0))])
    w = np.ones(len(truth)) if weight is None else weight.astype(np.float64)
    right, comparable = _pairs(rank, event == 1, risk[order], w[order])
    return float(right / comparable) if comparable else float("nan")


def _pairs(rank: np.ndarray, event: np.ndarray, risk: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Return the weight of concordant pairs, and of comparable ones: an event, and a row of a higher rank."""
    if rank[0] == rank[-1]:
        return 0.0, 0.0
    if len(rank) <= BLOCK:
        pair = weight[event, None] * weight * (rank[event, None] < rank)
        difference = risk[event, None] - risk
        return float((pair * ((difference > 0) + 0.5 * (difference == 0))).sum()), float(pair.sum())
    middle = np.searchsorted(rank, rank[len(rank) // 2])  # rows of one rank stay together
    middle = middle or np.searchsorted(rank, rank[0], side="right")
    halves = [
        _pairs(rank[part], event[part], risk[part], weight[part]) for part in (slice(middle), slice(middle, None))
    ]
    early, order = np.flatnonzero(event[:middle]), middle + np.argsort(risk[middle:], kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weight[order])])
    ends = [below[np.searchsorted(risk[order], risk[early], side=side)] for side in ("left", "right")]
    right = (weight[early] * (ends[0] + ends[1]) / 2).sum() + sum(half[0] for half in halves)
    return float(right), float(weight[early].sum() * below[-1] + sum(half[1] for half in halves))


def kaplan_meier(
    time: np.ndarray, event: np.ndarray, weight: np.ndarray | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the estimate Ŝ(t) = Π (1 − dᵢ/nᵢ) over the times tᵢ ≤ t of dᵢ events among nᵢ rows at risk.

    >>> kaplan_meier(np.array([1.0, 2, 3]), np.array([1, 0, 1]))(np.array([0.5, 1, 2.5]))
    array([1.        , 0.66666667, 0.66666667])
    """
    w = np.ones(len(time)) if weight is None else weight.astype(np.float64)
    times, place = np.unique(time, return_inverse=True)
    events = np.bincount(place, w * event, len(times))
    at_risk = np.cumsum(np.bincount(place, w, len(times))[::-1])[::-1]
    left = np.concatenate([[1.0], np.cumprod(1 - events / np.maximum(at_risk, np.finfo(float).tiny))])
    return lambda at: left[np.searchsorted(times, at, side="right")]


def integrated_brier_score(
    truth: np.ndarray, predicted: tuple[np.ndarray, np.ndarray], weight: np.ndarray | None
) -> float:
    """Return the mean over time of the squared error of survival, weighted for censoring (Graf et al., 1999).

    BS(t) = 1/N·Σ Ŝᵢ(t)²·1[tᵢ ≤ t, event]/G(tᵢ) + (1 − Ŝᵢ(t))²·1[tᵢ > t]/G(t), where G is the Kaplan-Meier estimate of
    the time of censoring in these rows; integrated by the trapezoidal rule. It is scikit-survival's function with
    these rows as both of its samples.

    Args:
        truth: times and events [N, 2].
        predicted: probabilities of survival, and their times, both [N, K].
        weight: [N], or None.

    Returns:
        The score between the first and the last time below the largest one in the rows; nan if fewer than two remain.
    """
    values, levels = predicted
    if weight is not None:  # a row of weight 0 is none
        truth, values, weight = truth[weight > 0], values[weight > 0], weight[weight > 0]
    time, event = truth.T
    times = levels[0]
    inside = (times < time.max()) & (times >= time.min())
    if inside.sum() < 2:
        return float("nan")
    censored = np.where(event == 1, np.nextafter(time, -np.inf), time)  # at equal times, events come first
    left = kaplan_meier(censored, 1 - event, weight)
    early = (time[:, None] <= times[inside]) & (event[:, None] == 1)
    late = time[:, None] > times[inside]
    survival, uncensored = (
        values[:, inside],
        np.where(early, left(time)[:, None], 1),
    )  # it is 0 only at the largest time
    errors = survival**2 * early / uncensored + (1 - survival) ** 2 * late / left(times[inside])
    scores = np.average(errors, axis=0, weights=weight)
    return float(np.trapezoid(scores, times[inside]) / np.ptp(times[inside]))
