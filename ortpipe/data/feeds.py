"""Rows as a model's feeds: bound by name, cast to the input's dtype, labels mapped to class indices."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from ortpipe.artifact import Facts
from ortpipe.data.rows import Rows, RowSet
from ortpipe.errors import DataError, OrtpipeError, listing


def feeds(model: onnx.ModelProto, facts: Facts, rows: Rows) -> dict[str, np.ndarray]:
    """Return all feeds of a loss model: inputs, labels and, if it has that input, row weights [N, 1] or [N]."""
    arrays = feed_inputs(model, facts, rows)
    for head, head_facts in facts.predictions.items():
        if head_facts.label is not None:
            with name_head(head):
                label = feed_label(model, head_facts, rows.of(head))
            flat = len(_input(model, head_facts.label)[1]) == 1
            arrays[head_facts.label] = label.reshape(-1) if flat else label
    if (facts.sample_weight is None) != (rows.sample_weight is None):
        raise DataError(
            "Rows must have weights if and only if the loss takes them.",
            got=f"rows {'without' if rows.sample_weight is None else 'with'} weights and a loss "
            f"{'without' if facts.sample_weight is None else 'with'} a weight input",
            fix="Set both {@add_loss.sample_weight}=true and {@data.source.sample_weight}, or neither.",
        )
    if facts.sample_weight is not None and rows.sample_weight is not None:
        dtype, shape = _input(model, facts.sample_weight)
        arrays[facts.sample_weight] = _cast(rows.sample_weight, dtype, "sample_weight").reshape(-1, *shape[1:])
    return arrays


def feed_inputs(model: onnx.ModelProto, facts: Facts, rows: Rows) -> dict[str, np.ndarray]:
    """Return the data inputs; reject rows that lack one, or whose shape does not fit the model."""
    names = facts.inputs
    inputs = rows.inputs
    if len(names) == len(inputs) == 1:
        inputs = dict(zip(names, inputs.values(), strict=True))
    elif rows.kept:  # a model may read only some columns of a table
        inputs = {name: array for name, array in inputs.items() if name in names or name not in rows.kept}
    if set(names) != set(inputs):
        rule = "Data must hold exactly the model's inputs, by name."
        fix = f"The model reads {', '.join(names)}: remove other arrays, or name them as labels or weights."
        if rows.kept and not inputs:
            fix = f"The model reads {', '.join(names)}: {{@data.source.encode}}=one_hot makes one input of all columns."
        raise DataError(rule, got=f"arrays {', '.join(sorted(rows.inputs))}", fix=fix)
    arrays, graph_inputs = {}, {i.name for i in model.graph.input}
    for name in (name for name in names if name in graph_inputs):  # the graph may not use one, such as a length
        dtype, shape = _input(model, name)
        array = inputs[name]
        expected, static = shape[1:], [d for d in shape[1:] if d is not None]
        if (
            array.shape[1:] != expected
            and len(static) == len(expected)
            and math.prod(array.shape[1:]) == math.prod(static)
        ):
            array = array.reshape(len(array), *static)  # flat pixels, for an image input
        if len(array.shape) != len(shape) or any(
            e is not None and e != a for e, a in zip(expected, array.shape[1:], strict=True)
        ):
            columns = rows.columns.get(name) or next(iter(rows.columns.values()), ())
            listed = f": {', '.join(columns[:20])}{' …' if len(columns) > 20 else ''}" if columns else ""
            rule, fix = "Features must have the width that the model takes.", f"Give {_format_shape(expected)} per row."
            actual = f"{_format_shape(array.shape[1:])} per row for input {name!r}{listed}"
            raise DataError(rule, got=actual, fix=fix)
        arrays[name] = _cast(array, dtype, name)
    return arrays


def feed_label(model: onnx.ModelProto, facts: Facts, rows: Rows) -> np.ndarray:
    """Return the labels: class indices [N, E…, 1] if the facts have classes, else numbers [N, E…, K].

    E… are the elements of a row, such as steps or pixels; a prediction [N, K] has none.
    """
    assert facts.label is not None
    dtype, shape = _input(model, facts.label)
    label = rows.label
    if facts.classes is not None and facts.task != "multilabel":
        index = class_index(facts, label)
        return index.reshape(-1, 1) if len(shape) <= 2 else fit_label(facts, index, shape[:-1])[..., None]
    if len(shape) > 2:
        return fit_label(facts, _cast(label, dtype, "label"), shape)
    width = shape[1] if len(shape) > 1 else None
    if label.ndim == 1:
        label = label.reshape(-1, 1)
    if label.ndim != 2 or (width is not None and label.shape[1] != width):
        raise DataError(
            "Labels must have the width of the model's prediction.",
            got=f"{_format_shape(rows.label.shape[1:])} per row",
            fix=f"The model predicts {width} values: choose other labels or another model; if the values are class "
            f"scores, set {{@{facts.settings}.task}}=multiclass.",
        )
    return _cast(label, dtype, "label")


@contextmanager
def name_head(head: str) -> Iterator[None]:
    """Add the head's name to errors about its labels or predictions; "", the prediction, adds nothing."""
    try:
        yield
    except OrtpipeError as error:
        error.got = f"{error.got} (head {head!r})" if head else error.got
        raise


def check_labels(facts: Facts, rows: RowSet) -> None:
    """Reject labels that are no class of their classifier; of a stream, only the labels it remembers."""
    for head, head_facts in facts.predictions.items():
        if head_facts.classes is not None and (labels := rows.of(head).labels) is not None:
            with name_head(head):
                class_index(head_facts, labels)


def fit_label(facts: Facts, label: np.ndarray, shape: Sequence[int | None]) -> np.ndarray:
    """Return labels of elements reshaped to `shape`: class indices [N, E…], or values [N, E…, K].

    Values are expected in the prediction's layout, with columns at `facts.class_axis`; dimensions of 1 may be omitted.
    A size of None is free.
    """
    values, axis = facts.task in ("regression", "multilabel"), facts.class_axis
    expected = list(shape[1:])
    if values and axis is not None and axis < len(expected):
        expected.insert(axis - 1, expected.pop())
    exact = _sizes_match(label.shape[1:], expected)
    sizes = list(label.shape[1:]) if exact else [d for d in label.shape[1:] if d != 1]
    if not exact and not _sizes_match(sizes, [d for d in expected if d != 1]):
        raise DataError(
            "Labels must have the shape of the model's prediction.",
            got=f"{_format_shape(label.shape[1:])} per row",
            fix=f"Give {_format_shape(tuple(expected))} {'values' if values else 'classes'} per row, or set "
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


def _sizes_match(sizes: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(sizes) == len(expected) and all(e in (None, d) for e, d in zip(expected, sizes, strict=True))


def class_index(facts: Facts, labels: np.ndarray) -> np.ndarray:
    """Return each label's class index, int64 [N], or [N, …] of elements; −1 for padding."""
    classes = facts.classes or ()
    per_row = facts.class_axis is None
    label = labels.reshape(len(labels)) if per_row and labels.ndim == 2 and labels.shape[1] == 1 else labels
    if per_row and label.ndim != 1:
        rule, actual = "A classifier needs one class per row.", f"labels of shape {labels.shape}"
        raise DataError(
            rule,
            got=actual,
            fix=f"Give one column of classes, or set {{@{facts.settings}.task}}=multilabel: a label per column.",
        )
    index: dict[Any, int] = {c: i for i, c in enumerate(classes)}
    values, inverse = np.unique(np.array(label.tolist()) if label.dtype == object else label, return_inverse=True)
    if facts.padding is not None:
        index[str(facts.padding) if values.dtype.kind == "U" else facts.padding] = -1
    unknown = [v for v in values.tolist() if v not in index]
    if unknown:
        rule, actual = "Every label must be a class that the model knows.", ", ".join(repr(v) for v in unknown[:5])
        fix = f"Its classes are {', '.join(repr(c) for c in classes[:10])}; if the outputs of an .onnx model stand "
        fix = f"{fix}for other labels, list those in {{@{facts.settings}.classes}}."
        if any(isinstance(v, float) and not v.is_integer() for v in unknown):
            fix = f"For labels between classes, set {{@{facts.settings}.task}}=regression."
        elif not per_row and len(unknown) == 1:
            fix += f" If {unknown[0]!r} marks elements to ignore, set {{@add_loss.padding}}={unknown[0]}."
        raise DataError(rule, got=actual, fix=fix)
    return np.array([index[v] for v in values.tolist()], np.int64)[inverse].reshape(label.shape)


def _input(model: onnx.ModelProto, name: str) -> tuple[np.dtype, tuple[int | None, ...]]:
    [tensor] = [i.type.tensor_type for i in model.graph.input if i.name == name]
    shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape


def _cast(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    if dtype.kind == "O" and array.dtype.kind not in "OSU":
        rule, actual = "A text input takes text.", f"{name}: {array.dtype}, such as {array.ravel()[:1].tolist()}"
        fix = f"If the column's numbers are categories, list it: {listing('{@data.source.categorical}', name)}."
        raise DataError(rule, got=actual, fix=fix)
    try:
        with np.errstate(over="raise", invalid="ignore"):
            if dtype.kind == "f" and array.dtype.kind in "iu" and array.dtype.itemsize == 8:
                array = array.astype(np.float64)  # as raw columns and text are read: one number, one rounding
            cast = np.ascontiguousarray(array.astype(dtype, copy=False))
        if dtype.kind in "iu" and array.dtype.kind in "iuf" and (wrong := cast != array).any():
            raise ValueError(f"{array[wrong][0]} is not a valid {dtype}")
        return cast
    except (ValueError, FloatingPointError) as error:
        reason: object = error
        if isinstance(error, FloatingPointError):
            [first, *_] = np.argwhere(np.abs(array) > np.finfo(dtype).max)
            reason = f"{array[tuple(first)]} at {first.tolist()} is out of range for {dtype}"
        rule = "Values must be numbers that fit the model's dtype."
        raise DataError(rule, got=f"{name}: {reason}", fix=f"Encode or scale them to {dtype} first.") from error


def _format_shape(shape: tuple[int | None, ...]) -> str:
    return "×".join("?" if d is None else str(d) for d in shape) or "1"
