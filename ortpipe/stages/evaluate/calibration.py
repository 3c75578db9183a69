"""Calibration of classes' probabilities on validation rows: temperature scaling and isotonic regression."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.isotonic import IsotonicRegression

from ortpipe.artifact import Artifact
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.metrics import METRICS
from ortpipe.metrics.predictions import Compared
from ortpipe.stages.evaluate.adjusted_graph import with_isotonic, with_temperature

LEAST = 1e-300  # probabilities whose logarithm is finite
RANGE = -5.0, 5.0  # of log T
SAME = 1e-3  # a larger difference means that the logits are of another value than the prediction
DIGITS = 7  # of probabilities in isotonic regression, so that float32 can divide by their differences
ADVISED = 1000  # rows for isotonic regression, as scikit-learn's user guide advises

Entries = Callable[[Artifact, Facts], Compared]  # of `facts.prediction`, a value of the graph, on validation rows


def calibrated(artifact: Artifact, method: str, entries: Entries, width: int) -> tuple[Artifact, str, dict[str, Any]]:
    """Return the calibrated model, a note, and an entry of the record; `width` is that of the prediction."""
    before = entries(artifact, artifact.facts)
    rows = len(before.truth)
    if method == "temperature":
        scores, columns = _scores(artifact, entries, before)
        t = temperature(scores)
        result, fitted = with_temperature(artifact, t, width, columns), {"temperature": t}
        words = f"temperature {t:.4g}"
    else:
        x, y = isotonic(before)
        result, fitted = with_isotonic(artifact, x, y, width), {"x": x.tolist(), "y": y.tolist()}
        few = f" ({ADVISED:,} rows or more are advised)" if rows < ADVISED else ""
        words = f"isotonic through {len(x)} points{few}"
    losses = [METRICS["log_loss"](*each) for each in (before, entries(result, result.facts))]
    note = f"calibration: {words}; log_loss of {rows:,} validation rows {losses[0]:.4f} → {losses[1]:.4f}"
    return result, note, {"method": method, "rows": rows, **fitted}


def _scores(artifact: Artifact, entries: Entries, predicted: Compared) -> tuple[Compared, int | None]:
    """Return the probabilities of the logits, which do not saturate, and the logits' columns.

    If there are no logits of the prediction, return the prediction's own probabilities, and None.
    """
    facts = artifact.facts
    if facts.logits is None or facts.members is not None:
        return predicted, None
    columns = query.width(query.value(artifact.ir_model().graph, facts.logits))
    scores = entries(artifact, replace(facts, prediction=facts.logits))
    assert scores.probability is not None and predicted.probability is not None
    same = abs(scores.probability - predicted.probability).max() < SAME
    return (scores, columns) if same and columns is not None else (predicted, None)


def temperature(entries: Compared) -> float:
    """Return the T with the least log loss of softmax(log p / T) (Guo et al., 2017)."""
    assert entries.probability is not None
    log_p = np.log(np.maximum(entries.probability, LEAST))
    weight = np.ones(len(log_p)) if entries.weight is None else entries.weight

    def loss(log_t: float) -> float:
        z = log_p / np.exp(log_t)
        top = z.max(axis=1)
        log_sum = top + np.log(np.exp(z - top[:, None]).sum(axis=1))
        return float(weight @ (log_sum - z[np.arange(len(z)), entries.truth]) / weight.sum())

    return float(np.exp(minimize_scalar(loss, bounds=RANGE, method="bounded", options={"xatol": 1e-8}).x))


def isotonic(entries: Compared) -> tuple[np.ndarray, np.ndarray]:
    """Return the points x, y of the rising function with the least squared error, linear between the points."""
    assert entries.probability is not None
    fitted = IsotonicRegression(out_of_bounds="clip")
    p = entries.probability[:, 1].round(DIGITS)
    fitted.fit(p, entries.truth == 1, sample_weight=entries.weight)
    x, y = fitted.X_thresholds_, fitted.y_thresholds_
    return (x, y) if len(x) > 1 else (np.append(x, x + 1), np.append(y, y))
