"""Predictions of elements (steps, pixels), of sequences, and with padding; errors about predictions."""

import math
from typing import NoReturn

import numpy as np

from ortpipe.data.elements import fit_label
from ortpipe.errors import EvaluateError
from ortpipe.facts import Facts
from ortpipe.metrics.predictions import Compared
from ortpipe.metrics.sequences import decoded, ended


def of_elements(facts: Facts, compared: Compared) -> Compared:
    """Return one entry per element without padding, with the weight of its row, or per sequence.

    Sequences are class indices [N, …], −1 after the end.
    """
    truth, label, probability, weight = compared
    if facts.blank is not None:
        return Compared(ended(truth, facts.blank), decoded(label, facts.blank), None, weight)
    if facts.class_axis is not None:
        truth = fit_label(facts, truth, label.shape)
    if label.shape[1:] != truth.shape[1:]:
        reject_shapes(truth, label)
    entry = () if facts.task in ("binary", "multiclass") else label.shape[-1:]
    elements = label.shape[1 : label.ndim - len(entry)]
    if elements:
        weight = None if weight is None else np.repeat(weight, math.prod(elements))
        probability = None if probability is None else probability.reshape(-1, probability.shape[-1])
        truth, label = truth.reshape(-1, *entry), label.reshape(-1, *entry)
    if facts.padding is None:
        return Compared(truth, label, probability, weight)
    counts = truth >= 0 if not entry else ~np.isnan(truth).any(axis=-1)
    arrays = (None if array is None else array[counts] for array in (truth, label, probability, weight))
    result = Compared(*arrays)  # type: ignore[arg-type]
    return result._replace(truth=result.truth.astype(np.int64)) if facts.task == "multilabel" else result


def reject_shapes(truth: np.ndarray, label: np.ndarray) -> NoReturn:
    """Raise for labels of another shape than the predictions."""
    raise EvaluateError(
        "Labels must have the width of the model's prediction.",
        got=f"test labels of shape {truth.shape}, predictions of shape {label.shape}",
        fix="Choose other labels or another model.",
    )


def reject_infinite(facts: Facts, prediction: np.ndarray) -> NoReturn:
    """Raise for predictions of nan or infinity."""
    finite = np.isfinite(prediction).reshape(len(prediction), -1).all(axis=1)
    raise EvaluateError(
        "A metric needs finite predictions.",
        got=f"nan or inf in {(~finite).sum()} of {len(finite)} rows of {facts.prediction!r}",
        fix="Scale the inputs, or train with a lower rate ({@train.optimizer.lr}).",
    )
