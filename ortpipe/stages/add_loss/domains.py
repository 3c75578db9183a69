"""The labels that a loss is defined for."""

import functools

import numpy as np

from ortpipe.data.labels import wrong_labels
from ortpipe.data.rows import Data
from ortpipe.errors import LossError
from ortpipe.settings import Must

# bounds of label arrays
NOT_NEGATIVE = Must("not negative", lambda y: y >= 0)
POSITIVE = Must("positive", lambda y: y > 0)
NUMBER = Must("whole numbers from 0 to 2²⁴, which float32 holds", lambda y: (y >= 0) & (y <= 2**24) & (y % 1 == 0))
ZERO_OR_ONE = Must("0 or 1", lambda y: (y == 0) | (y == 1))


def check_labels(bound: Must, loss: str, data: Data, padding: int | float | str | None = None) -> None:
    """Raise LossError for labels that a loss is not defined for, naming the first rows."""
    parts = {"train": data.train, "validate": data.validation, "test": data.test}
    for part, rows in parts.items():
        if rows is None or (rows.labels is not None and not len(_outside(rows.labels, bound, padding))):
            continue
        if wrong := wrong_labels(rows, part, functools.partial(_outside, bound=bound, padding=padding)):
            rule = f"The loss {loss} is defined for labels that are {bound.words}."
            raise LossError(rule, got=wrong, fix="Correct these rows or leave them out, or choose another loss.")


def check_pairs(data: Data) -> None:
    """Raise LossError if all training rows have the same label: none is a negative example of another."""
    numbers = {number for label, _ in data.train.read_labels() for number in np.unique(label)[:2].tolist()}
    if len(numbers) < 2:
        rule = "The loss info_nce needs training rows with different labels: a row's negative examples."
        fix = "Label each row with the number of its pair: 0, 1, 2, …"
        raise LossError(rule, got=f"{len(data.train)} rows with the label {', '.join(map(str, numbers))}", fix=fix)


def _outside(label: np.ndarray, bound: Must, padding: int | float | str | None) -> np.ndarray:
    """Return the indices of rows with labels out of bounds; none if labels are strings."""
    if label.dtype.kind not in "biuf":
        return np.zeros(0, np.int64)
    fits = (np.asarray(bound.holds(label)) | (label == padding)).reshape(len(label), -1).all(axis=1)
    return np.flatnonzero(~fits)
