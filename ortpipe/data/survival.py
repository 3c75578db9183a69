"""Labels of survival analysis: a time and an event, as the two columns of an array [N, 2]."""

import numpy as np

from ortpipe.data.rows import Data
from ortpipe.errors import DataError

RULE = "Survival needs two label columns, in this order: a time that is not negative, and an event, 1 or 0 (censored)."
SHOWN = 3  # the largest number of wrong labels in a message


def check_survival(data: Data) -> None:
    """Raise DataError for labels that are no times and events, and for training rows without an event."""
    for part, rows in {"train": data.train, "validate": data.validation, "test": data.test}.items():
        first, count, shown, events = 0, 0, list[str](), 0
        for label, _ in rows.read_labels() if rows is not None else ():
            _check_form(label)
            time, event = label[:, 0].astype(np.float64), label[:, 1].astype(np.float64)
            wrong = np.flatnonzero(~((time >= 0) & np.isfinite(time) & np.isin(event, (0, 1))))
            shown += [f"{label[i].tolist()} in row {first + i}" for i in wrong[: SHOWN - len(shown)]]
            first, count, events = first + len(label), count + len(wrong), events + int((event == 1).sum())
        if count:
            more = f", and {count - len(shown):,} more" if count > len(shown) else ""
            got = f"{', '.join(shown)}{more}, of the {first:,} rows to {part}, counted from 0"
            raise DataError(RULE, got=got, fix="Correct these rows, or the order of {@data.source.label}=[time,event].")
        if part == "train" and not events:
            fix = "Check the column of events: 1 means that the event occurred at the time."
            raise DataError("Survival needs an event in the training rows.", got="only censored rows", fix=fix)


def _check_form(label: np.ndarray) -> None:
    fix = "Set {@data.source.label}=[time,event], with the names of your columns."
    if label.ndim != 2 or label.shape[1] != 2:
        got = f"{label.shape[1] if label.ndim > 1 else 1} label column{'s' if label.ndim > 1 else ''}"
        raise DataError(RULE, got=got, fix=fix)
    if label.dtype.kind not in "biuf":
        raise DataError(RULE, got=f"text, such as {label[0].tolist()}", fix="Write events as 1 and 0.")
