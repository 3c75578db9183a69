"""Errors about rows that do not fit a model."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ortpipe.artifact import Facts
from ortpipe.data.rows import Rows
from ortpipe.errors import DataError
from ortpipe.quoting import listing


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
