"""Labels as class indices, of a row's elements (such as steps or pixels), and of survival: a time and an event."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortpipe.data.faults import more
from ortpipe.data.feeds import name_head, sizes_match
from ortpipe.data.row_checks import format_shape, reject_classes, reject_several
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import SHARES, Data, Rows
from ortpipe.errors import DataError
from ortpipe.facts import Facts

SHOWN = 3  # the largest number of wrong labels in a message
SURVIVAL = (
    "Survival needs two label columns, in this order: a time that is not negative, and an event, 1 or 0 (censored)."
)
MOST_CLASSES = 20  # up to so many different integers are classes, if nothing else tells


def wrong_labels(data: Data, places: Callable[[np.ndarray], np.ndarray]) -> str | None:
    """Return the first wrong labels of the first part that has some, and how many there are; None if there are none.

    `places` returns the places of the wrong ones in an array of labels.
    """
    for part, rows in {"train": data.train, "validate": data.validation, "test": data.test}.items():
        if rows is None or (rows.labels is not None and not len(places(rows.labels))):
            continue
        first, count, shown = 0, 0, list[str]()
        for label, _ in rows.read_labels():
            wrong = places(label)
            shown += [f"{label[place].tolist()} in row {first + place}" for place in wrong[: SHOWN - len(shown)]]
            first, count = first + len(label), count + len(wrong)
        if count:
            return f"{', '.join(shown)}{more(count - len(shown))}, of the {first:,} rows to {part}, counted from 0"
    return None


def check_labels(facts: Facts, rows: RowSet) -> None:
    """Reject labels that are no class of their classifier; of a stream, only the labels it remembers."""
    for head, head_facts in facts.predictions.items():
        if head_facts.classes is not None and (labels := rows.of(head).labels) is not None:
            with name_head(head):
                class_index(head_facts, labels)


def class_index(facts: Facts, labels: np.ndarray) -> np.ndarray:
    """Return each label's class index, int64 [N], or [N, …] of elements; −1 for padding."""
    classes = facts.classes or ()
    per_row = facts.class_axis is None
    label = labels.reshape(len(labels)) if per_row and labels.ndim == 2 and labels.shape[1] == 1 else labels
    if per_row and label.ndim != 1:
        reject_several(facts, labels)
    index: dict[Any, int] = {c: i for i, c in enumerate(classes)}
    values, inverse = np.unique(np.array(label.tolist()) if label.dtype == object else label, return_inverse=True)
    if facts.padding is not None:
        index[str(facts.padding) if values.dtype.kind == "U" else facts.padding] = -1
    if unknown := [v for v in values.tolist() if v not in index]:
        reject_classes(facts, unknown)
    return np.array([index[v] for v in values.tolist()], np.int64)[inverse].reshape(label.shape)


def class_shares(facts: Facts, rows: Rows) -> np.ndarray:
    """Return each row's share of every class [N, K]: a teacher's, or 1 for the label's class."""
    if SHARES in rows.heads:
        return rows.heads[SHARES]
    return np.eye(len(facts.classes or ()))[class_index(facts, rows.label)]


def label_of_class_or_elements(facts: Facts, rows: Rows, shape: Sequence[int | None]) -> np.ndarray:
    """Return class indices [N, E…, 1], shares of soft classes [N, K], or numbers of elements [N, E…, K]."""
    if facts.soft:
        return class_shares(facts, rows)
    if facts.classes is None or facts.task == "multilabel":
        return fit_label(facts, rows.label, shape)
    index = class_index(facts, rows.label)
    return index.reshape(-1, 1) if len(shape) <= 2 else fit_label(facts, index, shape[:-1])[..., None]


def fit_label(facts: Facts, label: np.ndarray, shape: Sequence[int | None]) -> np.ndarray:
    """Return labels of elements reshaped to `shape`: class indices [N, E…], or values [N, E…, K].

    Values are expected in the prediction's layout, with columns at `facts.class_axis`; dimensions of 1 may be omitted.
    A size of None is free.
    """
    values, axis = facts.task in ("regression", "multilabel"), facts.class_axis
    expected = list(shape[1:])
    if values and axis is not None and axis < len(expected):
        expected.insert(axis - 1, expected.pop())
    exact = sizes_match(label.shape[1:], expected)
    sizes = list(label.shape[1:]) if exact else [d for d in label.shape[1:] if d != 1]
    if not exact and not sizes_match(sizes, [d for d in expected if d != 1]):
        raise DataError(
            "Labels must have the shape of the model's prediction.",
            got=f"{format_shape(label.shape[1:])} per row",
            fix=f"Give {format_shape(tuple(expected))} {'values' if values else 'classes'} per row, or set "
            f"{{@{facts.settings}.class_axis}} to the prediction's axis of classes"
            + (
                f"; if classes are predicted, set {{@{facts.settings}.task}}=multiclass{_padding_of(label)}."
                if values
                else "; labels that are sequences of another length need the loss ctc."
            ),
        )
    remaining_sizes = iter(sizes)
    fitted = label if exact else label.reshape(len(label), *(1 if d == 1 else next(remaining_sizes) for d in expected))
    return np.moveaxis(fitted, axis, -1) if values and axis is not None and axis < len(expected) else fitted


def _padding_of(label: np.ndarray) -> str:
    """Return the setting that ignores elements of a negative label, as the end of a fix; "" if there are none."""
    is_whole = label.dtype.kind in "if" and label.size > 0 and not (label % 1).any()
    least = label.min() if is_whole else 0
    return f" and, if {least:g} marks elements to ignore, {{@add_loss.padding}}={least:g}" if least < 0 else ""


def check_survival(data: Data) -> None:
    """Raise DataError for labels that are no times and events, and for training rows without an event."""
    if wrong := wrong_labels(data, _no_survival):
        fix = "Correct these rows, or the order of {@data.source.label}=[time,event]."
        raise DataError(SURVIVAL, got=wrong, fix=fix)
    if not any((label[:, 1] == 1).any() for label, _ in data.train.read_labels()):
        fix = "Check the column of events: 1 means that the event occurred at the time."
        raise DataError("Survival needs an event in the training rows.", got="only censored rows", fix=fix)


def _no_survival(label: np.ndarray) -> np.ndarray:
    """Return the places of labels that are no times and events."""
    fix = "Set {@data.source.label}=[time,event], with the names of your columns."
    if label.ndim != 2 or label.shape[1] != 2:
        got = f"{label.shape[1] if label.ndim > 1 else 1} label column{'s' if label.ndim > 1 else ''}"
        raise DataError(SURVIVAL, got=got, fix=fix)
    if label.dtype.kind not in "biuf":
        raise DataError(SURVIVAL, got=f"text, such as {label[0].tolist()}", fix="Write events as 1 and 0.")
    time, event = label.astype(np.float64).T
    return np.flatnonzero(~((time >= 0) & np.isfinite(time) & np.isin(event, (0, 1))))
