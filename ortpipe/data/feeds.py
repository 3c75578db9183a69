"""Rows as a model's feeds: bound by name, cast to the input's type, labels mapped to class indices."""

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
    """Return everything a loss model reads: inputs, label and, where it has that input, row weights [N, 1] or [N]."""
    arrays = feed_inputs(model, facts, rows)
    for head, own in facts.predictions.items():
        if own.label is not None:
            with name_head(head):
                label = feed_label(model, own, rows.of(head))
            arrays[own.label] = label.reshape(-1) if len(_input(model, own.label)[1]) == 1 else label
    if (facts.sample_weight is None) != (rows.sample_weight is None):
        raise DataError(
            "Rows have weights where the loss takes them, and only there.",
            got=f"rows {'without' if rows.sample_weight is None else 'with'} weights, a loss "
            f"{'without' if facts.sample_weight is None else 'with'} a weight input",
            fix="Set add_loss.sample_weight=true together with data.source.sample_weight, or neither.",
        )
    if facts.sample_weight is not None and rows.sample_weight is not None:
        dtype, shape = _input(model, facts.sample_weight)
        arrays[facts.sample_weight] = _cast(rows.sample_weight, dtype, "sample_weight").reshape(-1, *shape[1:])
    return arrays


def feed_inputs(model: onnx.ModelProto, facts: Facts, rows: Rows) -> dict[str, np.ndarray]:
    """Return the data inputs; refuse rows that lack one, or of another shape than the model takes."""
    names = facts.inputs
    given = rows.inputs
    if len(names) == len(given) == 1:
        given = dict(zip(names, given.values(), strict=True))
    elif rows.kept:  # of a table's columns a model may read some
        given = {name: array for name, array in given.items() if name in names or name not in rows.kept}
    if set(names) != set(given):
        rule = "Data must hold the model's inputs by name."
        fix = f"The model reads {', '.join(names)}: give no other, and name arrays of labels and weights as such."
        if rows.kept and not given:
            fix = f"The model reads {', '.join(names)}: data.source.encode=one_hot makes one input of all columns."
        raise DataError(rule, got=f"arrays {', '.join(sorted(rows.inputs))}", fix=fix)
    arrays, read = {}, {i.name for i in model.graph.input}
    for name in (name for name in names if name in read):  # nothing may read it, such as a length that is never used
        dtype, shape = _input(model, name)
        array = given[name]
        expected, fixed = shape[1:], [d for d in shape[1:] if d is not None]
        if (
            array.shape[1:] != expected
            and len(fixed) == len(expected)
            and math.prod(array.shape[1:]) == math.prod(fixed)
        ):
            array = array.reshape(len(array), *fixed)  # pixels as one row, for an image input
        if len(array.shape) != len(shape) or any(
            e is not None and e != a for e, a in zip(expected, array.shape[1:], strict=True)
        ):
            columns = rows.columns.get(name) or next(iter(rows.columns.values()), ())
            named = f": {', '.join(columns[:20])}{' …' if len(columns) > 20 else ''}" if columns else ""
            rule, fix = "Features must have the width that the model takes.", f"Give {_shown(expected)} per row."
            raise DataError(rule, got=f"{_shown(array.shape[1:])} per row for input {name!r}{named}", fix=fix)
        arrays[name] = _cast(array, dtype, name)
    return arrays


def feed_label(model: onnx.ModelProto, facts: Facts, rows: Rows) -> np.ndarray:
    """Return the labels: class indices [N, E…, 1] where the facts hold classes, else numbers [N, E…, K].

    E… are the elements of a row, such as steps or pixels: none of a prediction [N, K].
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
            got=f"{_shown(rows.label.shape[1:])} per row",
            fix=f"The model predicts {width}: choose other labels or another model; where those are scores of classes, "
            f"set {facts.settings}.task=multiclass.",
        )
    return _cast(label, dtype, "label")


@contextmanager
def name_head(head: str) -> Iterator[None]:
    """Let errors about a head's labels or predictions name it; those about the prediction, "", are as they are."""
    try:
        yield
    except OrtpipeError as error:
        error.got = f"{error.got} (head {head!r})" if head else error.got
        raise


def check_labels(facts: Facts, rows: RowSet) -> None:
    """Refuse labels that are no class of their classifier; of a stream, those that it remembers."""
    for head, own in facts.predictions.items():
        if own.classes is not None and (labels := rows.of(head).labels) is not None:
            with name_head(head):
                class_index(own, labels)


def fit_label(facts: Facts, label: np.ndarray, shape: Sequence[int | None]) -> np.ndarray:
    """Return labels of elements in this shape: class indices [N, E…], or values [N, E…, K].

    Values come in the prediction's own layout, its columns at `facts.class_axis`; dimensions of 1 may be left out.
    A size that is None is free.
    """
    values, axis = facts.task in ("regression", "multilabel"), facts.class_axis
    own = list(shape[1:])
    if values and axis is not None and axis < len(own):
        own.insert(axis - 1, own.pop())
    exact = _agree(label.shape[1:], own)
    sizes = list(label.shape[1:]) if exact else [d for d in label.shape[1:] if d != 1]
    if not exact and not _agree(sizes, [d for d in own if d != 1]):
        raise DataError(
            "Labels must have the shape of the model's prediction.",
            got=f"{_shown(label.shape[1:])} per row",
            fix=f"Give {_shown(tuple(own))} {'values' if values else 'classes'} per row, or say where the prediction "
            f"has its classes with {facts.settings}.class_axis.",
        )
    rest = iter(sizes)
    fitted = label if exact else label.reshape(len(label), *(1 if d == 1 else next(rest) for d in own))
    return np.moveaxis(fitted, axis, -1) if values and axis is not None and axis < len(own) else fitted


def _agree(sizes: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(sizes) == len(wanted) and all(w in (None, d) for w, d in zip(wanted, sizes, strict=True))


def class_index(facts: Facts, given: np.ndarray) -> np.ndarray:
    """Return each label's class index, int64 [N], or [N, …] of elements; −1 of those that count nothing."""
    classes = facts.classes or ()
    plain = facts.class_axis is None
    label = given.reshape(len(given)) if plain and given.ndim == 2 and given.shape[1] == 1 else given
    if plain and label.ndim != 1:
        rule, got = "A classifier's labels are one class per row.", f"labels of shape {given.shape}"
        raise DataError(
            rule,
            got=got,
            fix=f"Give one column of classes, or set {facts.settings}.task=multilabel, a label of each column.",
        )
    index: dict[Any, int] = {c: i for i, c in enumerate(classes)}
    values, inverse = np.unique(np.array(label.tolist()) if label.dtype == object else label, return_inverse=True)
    if facts.padding is not None:
        index[str(facts.padding) if values.dtype.kind == "U" else facts.padding] = -1
    unknown = [v for v in values.tolist() if v not in index]
    if unknown:
        rule, got = "Every label must be a class that the model knows.", ", ".join(repr(v) for v in unknown[:5])
        fix = f"Its classes are {', '.join(repr(c) for c in classes[:10])}; where the columns of an "
        raise DataError(rule, got=got, fix=f"{fix}.onnx model mean these labels, list them: {facts.settings}.classes.")
    return np.array([index[v] for v in values.tolist()], np.int64)[inverse].reshape(label.shape)


def _input(model: onnx.ModelProto, name: str) -> tuple[np.dtype, tuple[int | None, ...]]:
    [tensor] = [i.type.tensor_type for i in model.graph.input if i.name == name]
    shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape


def _cast(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    if dtype.kind == "O" and array.dtype.kind not in "OSU":
        rule, got = "An input of text takes text.", f"{name}: {array.dtype}, such as {array.ravel()[:1].tolist()}"
        fix = f"Where a column's numbers are words, list it: {listing('data.source.categorical', name)}."
        raise DataError(rule, got=got, fix=fix)
    try:
        with np.errstate(over="raise", invalid="ignore"):
            cast = np.ascontiguousarray(array.astype(dtype, copy=False))
        if dtype.kind in "iu" and array.dtype.kind in "iuf" and (wrong := cast != array).any():
            raise ValueError(f"{array[wrong][0]} is no {dtype}")
        return cast
    except (ValueError, FloatingPointError) as error:
        where: object = error
        if isinstance(error, FloatingPointError):
            [first, *_] = np.argwhere(np.abs(array) > np.finfo(dtype).max)
            where = f"{array[tuple(first)]} at {first.tolist()} is beyond {dtype}"
        rule = "Values must be numbers that fit the model's type."
        raise DataError(rule, got=f"{name}: {where}", fix=f"Encode or scale them to {dtype} first.") from error


def _shown(shape: tuple[int | None, ...]) -> str:
    return "×".join("?" if d is None else str(d) for d in shape) or "1"
