"""The decision threshold of two classes with the best metric on validation rows."""

from typing import Any

import numpy as np

from ortpipe.facts import Facts
from ortpipe.metrics import METRICS
from ortpipe.metrics.predictions import Compared, value_of

LEVELS = 101  # quantiles of the probabilities of each class, between which thresholds are tried
USUAL = 0.5


def tuned(entries: Compared, name: str, facts: Facts) -> tuple[float | None, str, dict[str, Any]]:
    """Return the threshold (None: 0.5 is as good as any other), a note, and an entry of the record.

    The second class is predicted where its probability is at least the threshold. Thresholds are tried halfway
    between neighboring quantiles of each class, then again between the neighbors of the best one; of equally good
    ones, the one nearest to 0.5 wins.
    """
    assert entries.probability is not None
    metric, p = METRICS[name], entries.probability[:, 1]
    sign = 1 if metric.greater_is_better else -1
    before = value_of(metric, entries)
    best, value, around = USUAL, before, np.full(len(p), fill_value=True)
    for _ in range(2):
        thresholds = candidates(p[around], entries.truth[around])
        for threshold in sorted(thresholds, key=lambda t: abs(t - USUAL)):
            result = value_of(metric, entries._replace(label=(p >= threshold).astype(np.int64)))
            if sign * result > sign * value or np.isnan(value):
                best, value = threshold, result
        low = max((t for t in thresholds if t < best), default=0)
        around = (p >= low) & (p <= min((t for t in thresholds if t > best), default=1))
    class_name = repr(facts.classes[1]) if facts.classes else "class 1"
    rows = f"{len(p):,} validation rows"
    note = f"threshold: {class_name} from probability {best:.4g} on; {name} of {rows} {before:.4f} → {value:.4f}"
    if best == USUAL:
        note = f"threshold: 0.5 stays; {name} of {rows} is {before:.4f}, and no better at another threshold"
    record = {"metric": name, "threshold": best, "before": before, "after": value, "rows": len(p)}
    return (None if best == USUAL else best), note, record


def candidates(p: np.ndarray, truth: np.ndarray) -> list[float]:
    """Return thresholds between neighboring levels, as numbers of float32, which graphs compare with.

    >>> candidates(np.array([0.25, 0.5, 0.75]), np.array([0, 1, 1]))
    [0.375, 0.625]
    """
    shares = np.linspace(0, 1, LEVELS)
    of_classes = (p[truth == k] for k in (0, 1))
    levels = np.unique([np.quantile(of_class, shares, method="nearest") for of_class in of_classes if len(of_class)])
    halfway = ((levels[:-1] + levels[1:]) / 2).astype(np.float32).astype(np.float64)
    return halfway[(halfway > levels[:-1]) & (halfway <= levels[1:])].tolist()
