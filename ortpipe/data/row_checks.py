"""Checks of rows, whose errors name the faulty rows, and rows as text."""

from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np

from ortpipe.data.config import PARTS
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DataError


def check_rows(rows: Rows) -> None:
    """Reject arrays that are ragged, empty, misaligned, or not finite."""
    if not rows.inputs:
        raise DataError("Data must hold at least one input.", got="none", fix="Add an array of features.")
    if rows.label.ndim == 0 or not len(rows.label):
        actual = f"labels of shape {rows.label.shape}"
        raise DataError("Data must hold at least one row.", got=actual, fix="Give at least one row.")
    weight = rows.sample_weight
    if weight is not None and weight.ndim != 1:
        raise DataError("Row weights must have shape [N].", got=weight.shape, fix="Give one weight per row.")
    if weight is not None and weight.dtype.kind not in "biuf":
        actual = f"an array of {weight.dtype}"
        raise DataError("Row weights must be numbers.", got=actual, fix="Choose another weight column.")
    raw_inputs = {f"input {name!r}" for name in rows.kept}
    for name, array, columns in named(rows):
        _check_array(rows, name, array, columns, raw=name in raw_inputs)
    if weight is not None and (weight < 0).any():
        raise DataError("Row weights must not be negative.", got=weight.min(), fix="Choose another weight column.")


def named(rows: Rows) -> Iterator[tuple[str, np.ndarray, Sequence[str]]]:
    """Yield each array's name in messages, the array, and the names of its columns."""
    for name, array in rows.inputs.items():
        yield f"input {name!r}", array, rows.columns.get(name, ())
    yield "label", rows.label, ()
    for name, array in rows.heads.items():
        yield f"label of {name!r}", array, ()
    if rows.sample_weight is not None:
        yield "sample_weight", rows.sample_weight, ()


def _check_array(rows: Rows, name: str, array: np.ndarray, columns: Sequence[str], *, raw: bool) -> None:
    """Reject an array that is ragged, misaligned, of objects, or not finite."""
    if array.ndim == 0 or len(array) != len(rows.label):
        rule, fix = "Every array must have one entry per row.", "Check for ragged or missing rows."
        raise DataError(rule, got=f"{name} has shape {array.shape}, the labels {rows.label.shape}", fix=fix)
    if array.dtype == object and not name.startswith("label") and not (raw and _is_text(array)):
        rule, fix = "Arrays must be rectangular and of one type.", "Check for ragged rows."
        if _is_text(array):
            rule = "Arrays of inputs must hold numbers, or text of NumPy's dtype str."
            fix = "Give columns of words and numbers as a DataFrame: by data=function, or to OrtClassifier."
        raise DataError(rule, got=f"{name} is an array of Python objects", fix=fix)
    if array.dtype.kind not in "biufOSU":
        rule = "Arrays may hold only numbers, text and truth values."
        fix = "Convert dates and other types to numbers."
        raise DataError(rule, got=f"{name} of {array.dtype}", fix=fix)
    check_finite(name, array, columns, missing=raw)


def _is_text(array: np.ndarray) -> bool:
    return all(issubclass(kind, str) for kind in set(map(type, array.ravel().tolist())))


def check_finite(
    name: str, array: np.ndarray, columns: Sequence[str] = (), first: int = 0, *, missing: bool = False
) -> None:
    """Reject infinity, and nan unless `missing`, and name the place; `first` is the number of the array's first row."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    wrong = np.isinf(array) if missing else ~np.isfinite(array)
    if not wrong.any():
        return
    place = np.argwhere(wrong)[0]
    column = ""
    if array.ndim > 1:
        has_names = array.ndim == 2 and len(columns) == array.shape[1]
        column = f", column {columns[place[1]]!r}" if has_names else f", column {place[1]}"
    rule, fix = "Data must be finite.", "Drop or impute such rows before training."
    if name.startswith("label"):
        fix = (
            f"{fix} Mark a step or pixel without a label by a number such as -100, and set {{@add_loss.padding}}=-100."
        )
    raise DataError(rule, got=f"{array[tuple(place)]} in {name}, row {first + place[0]}{column}", fix=fix)


def reject_head(rows: Rows, head: str) -> NoReturn:
    """Raise for a head without labels."""
    raise DataError(
        "Rows must have labels for every output with a loss of its own.",
        got=f"none for {head!r}, labels for {', '.join(rows.heads) or 'the prediction only'}",
        fix=f"Name the columns or the array of its labels: {{@data.source.heads}}={{{head}: …}}.",
    )


def reject_data(data: object) -> NoReturn:
    """Raise for data that were not split."""
    rule = "A stage needs a Data: rows that are split into parts."
    fix = "Give data=split(Rows(X, y), SplitConfig(test=0.25)), or Data(train=Rows(X, y))."
    raise DataError(rule, got=type(data).__name__, fix=fix)


def text_of(data: Data) -> str:
    """Return the number of rows of each part, and the shapes of a row."""
    parts = zip(PARTS, (data.train, data.validation, data.test), strict=True)
    counts = ", ".join(f"{len(part)} {name}" for name, part in parts if part is not None)
    row = data.train.head(1)
    shapes = ", ".join(f"{name} {list(array.shape[1:])}" for name, array in row.inputs.items())
    return f"Data({counts} rows of {shapes} → label {list(row.label.shape[1:])})"
