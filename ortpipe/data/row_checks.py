"""Checks of rows, errors about rows that do not fit a model, and rows as text."""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from ortpipe.data.parts import PARTS
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DataError
from ortpipe.facts import Facts
from ortpipe.quoting import listing


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


def reject_weights(*, weighted: bool) -> NoReturn:
    """Raise for weights of rows, or of the loss, alone."""
    raise DataError(
        "Rows must have weights if and only if the loss takes them.",
        got=f"rows {'with' if weighted else 'without'} weights and a loss "
        f"{'without' if weighted else 'with'} a weight input",
        fix="Set both {@add_loss.sample_weight}=true and {@data.source.sample_weight}, or neither.",
    )


def reject_inputs(names: Sequence[str], rows: Rows, *, any_read: bool) -> NoReturn:
    """Raise for arrays with other names than the model's inputs."""
    rule = "Data must hold exactly the model's inputs, by name."
    fix = f"The model reads {', '.join(names)}: remove other arrays, or name them as labels or weights."
    if not any_read and (of_table := array_fix(rows, names[0])):
        fix = f"The model reads {', '.join(names)}.{of_table}"
    raise DataError(rule, got=f"arrays {', '.join(sorted(rows.inputs))}", fix=fix)


def array_fix(rows: Rows, name: str) -> str:
    """Return how the columns of a table become one input, as the end of a fix; "" for rows of arrays."""
    setting = f"{{@data.source.inputs}}={{{name}: null}}"
    columns = "makes one input of all columns of numbers, and a list in place of null one of these columns"
    return f" For a table, {setting} {columns}." if rows.kept else ""


def reject_width(name: str, sizes: Sequence[int], expected: Sequence[int | None], rows: Rows) -> NoReturn:
    """Raise for an input of another shape."""
    columns = rows.columns.get(name) or next(iter(rows.columns.values()), ())
    listed = f": {', '.join(columns[:20])}{' …' if len(columns) > 20 else ''}" if columns else ""
    rule, fix = "Features must have the width that the model takes.", f"Give {format_shape(expected)} per row."
    raise DataError(rule, got=f"{format_shape(sizes)} per row for input {name!r}{listed}", fix=fix)


def reject_label_width(label: np.ndarray, width: int | None, facts: Facts) -> NoReturn:
    """Raise for labels of another width than the prediction."""
    raise DataError(
        "Labels must have the width of the model's prediction.",
        got=f"{format_shape(label.shape[1:])} per row",
        fix=f"The model predicts {width} values: choose other labels or another model; if the values are class "
        f"scores, set {{@{facts.settings}.task}}=multiclass.",
    )


def reject_several(facts: Facts, labels: np.ndarray) -> NoReturn:
    """Raise for several classes per row."""
    raise DataError(
        "A classifier needs one class per row.",
        got=f"labels of shape {labels.shape}",
        fix=f"Give one column of classes, or set {{@{facts.settings}.task}}=multilabel: a label per column.",
    )


def reject_classes(facts: Facts, unknown: Sequence[Any]) -> NoReturn:
    """Raise for labels that are no classes of the model."""
    classes = facts.classes or ()
    rule, actual = "Every label must be a class that the model knows.", ", ".join(repr(v) for v in unknown[:5])
    fix = f"Its classes are {', '.join(repr(c) for c in classes[:10])}; if the outputs of an .onnx model stand "
    fix = f"{fix}for other labels, list those in {{@{facts.settings}.classes}}."
    if any(isinstance(v, float) and not v.is_integer() for v in unknown):
        fix = f"For labels between classes, set {{@{facts.settings}.task}}=regression."
    elif facts.class_axis is not None and len(unknown) == 1:
        fix += f" If {unknown[0]!r} marks elements to ignore, set {{@add_loss.padding}}={unknown[0]}."
    raise DataError(rule, got=actual, fix=fix)


def reject_values(array: np.ndarray, dtype: np.dtype, name: str, error: Exception | None = None) -> NoReturn:
    """Raise for values that a type does not hold, `error` if a cast found them."""
    if dtype.kind == "O":
        rule, actual = "A text input takes text.", f"{name}: {array.dtype}, such as {array.ravel()[:1].tolist()}"
        fix = f"If the column's numbers are categories, list it: {listing('{@data.source.categorical}', name)}."
        raise DataError(rule, got=actual, fix=fix) from None
    reason: object = error
    if error is None:
        with np.errstate(invalid="ignore"):
            reason = f"{array[array.astype(dtype) != array][0]} is not a valid {dtype}"
    elif isinstance(error, FloatingPointError):
        [first, *_] = np.argwhere(np.abs(array) > np.finfo(dtype).max)
        reason = f"{array[tuple(first)]} at {first.tolist()} is out of range for {dtype}"
    rule = "Values must be numbers that fit the model's dtype."
    raise DataError(rule, got=f"{name}: {reason}", fix=f"Encode or scale them to {dtype} first.") from error


def format_shape(shape: Sequence[int | None]) -> str:
    """Return sizes as text, `2×3`, `?` for any size."""
    return "×".join("?" if d is None else str(d) for d in shape) or "1"
