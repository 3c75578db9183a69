"""Predictions as the columns of a table."""

import numpy as np

from ortpipe.facts import Facts
from ortpipe.metrics.predictions import predicted

LEVEL = {"quantiles": "q", "survival": "survival_"}  # the start of a column's name


def level_names(facts: Facts) -> tuple[str, ...]:
    """Return the names of a prediction's columns, such as q0.1 of a quantile, or survival_12 at the time 12."""
    return tuple(f"{LEVEL[str(facts.link)]}{level:.12g}" for level in facts.levels)


def as_columns(facts: Facts, prediction: np.ndarray, prefix: str = "") -> dict[str, np.ndarray]:
    """Return a table of predictions: `prediction` and each `probability_CLASS`, or `prediction`, `prediction_0`, ….

    Columns of quantiles are `prediction_q0.1`, …, those of survival at times `prediction_survival_12`, ….

    The MLflow model returns the same columns (`ortpipe.runtime.raw_rows`).
    """
    label, probability = predicted(facts, prediction)
    shares = np.empty((len(label), 0)) if probability is None else probability.reshape(len(label), -1)
    if facts.task in ("binary", "multiclass"):
        classes = facts.classes or tuple(range(shares.shape[1]))
        columns = {f"{prefix}prediction": np.array(classes)[label]}
    else:
        wide = label.reshape(len(label), -1)
        count = wide.shape[1]
        classes = facts.classes if facts.classes and len(facts.classes) == count else tuple(range(count))
        if facts.levels:
            classes, shares = level_names(facts), shares[:, :0]
        names = [f"{prefix}prediction"] if count == 1 else [f"{prefix}prediction_{name}" for name in classes]
        columns = dict(zip(names, wide.T, strict=True))
    return columns | {f"{prefix}probability_{name}": share for name, share in zip(classes, shares.T, strict=False)}
