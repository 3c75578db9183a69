"""Labels of survival analysis: a time and an event, as the two columns of an array [N, 2]."""

import numpy as np

from ortpipe.data.labels import wrong_labels
from ortpipe.data.rows import Data
from ortpipe.errors import DataError

RULE = "Survival needs two label columns, in this order: a time that is not negative, and an event, 1 or 0 (censored)."


def check_survival(data: Data) -> None:
    """Raise DataError for labels that are no times and events, and for training rows without an event."""
    for part, rows in {"train": data.train, "validate": data.validation, "test": data.test}.items():
        if rows is not None and (wrong := wrong_labels(rows, part, _wrong)):
            fix = "Correct these rows, or the order of {@data.source.label}=[time,event]."
            raise DataError(RULE, got=wrong, fix=fix)
    if not any((label[:, 1] == 1).any() for label, _ in data.train.read_labels()):
        fix = "Check the column of events: 1 means that the event occurred at the time."
        raise DataError("Survival needs an event in the training rows.", got="only censored rows", fix=fix)


def _wrong(label: np.ndarray) -> np.ndarray:
    """Return the places of labels that are no times and events."""
    _check_form(label)
    time, event = label.astype(np.float64).T
    return np.flatnonzero(~((time >= 0) & np.isfinite(time) & np.isin(event, (0, 1))))


def _check_form(label: np.ndarray) -> None:
    fix = "Set {@data.source.label}=[time,event], with the names of your columns."
    if label.ndim != 2 or label.shape[1] != 2:
        got = f"{label.shape[1] if label.ndim > 1 else 1} label column{'s' if label.ndim > 1 else ''}"
        raise DataError(RULE, got=got, fix=fix)
    if label.dtype.kind not in "biuf":
        raise DataError(RULE, got=f"text, such as {label[0].tolist()}", fix="Write events as 1 and 0.")
