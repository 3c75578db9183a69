"""The labels that a loss is defined for."""

import numpy as np

from ortpipe.data.rows import Data
from ortpipe.errors import LossError
from ortpipe.settings import Must

# bounds of label arrays
NOT_NEGATIVE = Must("not negative", lambda y: y >= 0)
POSITIVE = Must("positive", lambda y: y > 0)
ZERO_OR_ONE = Must("0 or 1", lambda y: (y == 0) | (y == 1))

SHOWN = 3  # the largest number of wrong labels in a message


def check_labels(bound: Must, loss: str, data: Data, padding: int | float | str | None = None) -> None:
    """Raise LossError for labels that a loss is not defined for, naming the first rows."""
    parts = {"train": data.train, "validate": data.validation, "test": data.test}
    for part, rows in parts.items():
        if rows is None or (rows.labels is not None and _outside(bound, rows.labels, padding) is None):
            continue
        first, count, shown = 0, 0, list[str]()
        for label, _ in rows.read_labels():
            if (places := _outside(bound, label, padding)) is not None:
                shown += [f"{label[p].tolist()} in row {first + p}" for p in places[: SHOWN - len(shown)]]
                count += len(places)
            first += len(label)
        if count:
            more = f", and {count - len(shown):,} more" if count > len(shown) else ""
            raise LossError(
                f"The loss {loss} is defined for labels that are {bound.words}.",
                got=f"{', '.join(shown)}{more}, of the {first:,} rows to {part}, counted from 0",
                fix="Correct these rows or leave them out, or choose another loss.",
            )


def _outside(bound: Must, label: np.ndarray, padding: int | float | str | None) -> np.ndarray | None:
    """Return the indices of rows with labels out of bounds, None if there are none or labels are strings."""
    if label.dtype.kind not in "biuf":
        return None
    fits = (np.asarray(bound.holds(label)) | (label == padding)).reshape(len(label), -1).all(axis=1)
    return None if fits.all() else np.flatnonzero(~fits)
