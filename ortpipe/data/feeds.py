"""Rows as a model's feeds: bound by name, cast to the input's dtype, labels mapped to class indices."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import onnx

from ortpipe.artifact import Facts
from ortpipe.data.rows import Rows
from ortpipe.doors import later
from ortpipe.errors import OrtpipeError

if TYPE_CHECKING:
    from ortpipe.data.labels import label_of_class_or_elements
    from ortpipe.data.row_checks import reject_inputs, reject_label_width, reject_values, reject_weights, reject_width
else:
    later(__name__)

Feed = Callable[[Rows], dict[str, np.ndarray]]  # some rows → a model's inputs


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
        reject_weights(weighted=rows.sample_weight is not None)
    if facts.sample_weight is not None and rows.sample_weight is not None:
        dtype, shape = _input(model, facts.sample_weight)
        arrays[facts.sample_weight] = _cast(rows.sample_weight, dtype, "sample_weight").reshape(-1, *shape[1:])
    return arrays


def feed_inputs(model: onnx.ModelProto, facts: Facts, rows: Rows) -> dict[str, np.ndarray]:
    """Return the data inputs; reject rows that lack one, or whose shape does not fit the model."""
    names, inputs = facts.inputs, rows.inputs
    if len(names) == len(inputs) == 1:
        inputs = dict(zip(names, inputs.values(), strict=True))
    elif rows.kept:  # a model may read only some columns of a table
        inputs = {name: array for name, array in inputs.items() if name in names or name not in rows.kept}
    if set(names) != set(inputs):
        reject_inputs(names, rows, any_read=bool(inputs))
    graph_inputs = {i.name for i in model.graph.input}  # the graph may not use one, such as a length
    return {name: _feed_input(model, name, inputs[name], rows) for name in names if name in graph_inputs}


def _feed_input(model: onnx.ModelProto, name: str, array: np.ndarray, rows: Rows) -> np.ndarray:
    dtype, (_, *expected) = _input(model, name)
    sizes = [*array.shape[1:]]
    if sizes != expected and None not in expected and math.prod(sizes) == math.prod(expected):  # type: ignore[arg-type]
        array, sizes = array.reshape(len(array), *expected), expected  # flat pixels, for an image input
    if not sizes_match(sizes, expected):
        reject_width(name, sizes, expected, rows)
    return _cast(array, dtype, name)


def feed_label(model: onnx.ModelProto, facts: Facts, rows: Rows) -> np.ndarray:
    """Return the labels: class indices [N, E…, 1], shares of soft classes [N, K], or numbers [N, E…, K].

    E… are the elements of a row, such as steps or pixels; a prediction [N, K] has none.
    """
    assert facts.label is not None
    dtype, shape = _input(model, facts.label)
    of_class = facts.soft or (facts.classes is not None and facts.task != "multilabel")
    if of_class or len(shape) > 2:
        return _cast(label_of_class_or_elements(facts, rows, shape), dtype, "label")
    label = rows.label
    width = shape[1] if len(shape) > 1 else None
    if label.ndim == 1:
        label = label.reshape(-1, 1)
    if label.ndim != 2 or (width is not None and label.shape[1] != width):
        reject_label_width(rows.label, width, facts)
    return _cast(label, dtype, "label")


@contextmanager
def name_head(head: str) -> Iterator[None]:
    """Add the head's name to errors about its labels or predictions; "", the prediction, adds nothing."""
    try:
        yield
    except OrtpipeError as error:
        error.got = f"{error.got} (head {head!r})" if head else error.got
        raise


def _input(model: onnx.ModelProto, name: str) -> tuple[np.dtype, tuple[int | None, ...]]:
    [tensor] = [i.type.tensor_type for i in model.graph.input if i.name == name]
    shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape


def _cast(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    source = array
    if dtype.kind == "f" and array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        array = array.astype(np.float64)  # as raw columns and text are read: one number, one rounding
    try:
        with np.errstate(over="raise", invalid="ignore"):
            cast = np.ascontiguousarray(array.astype(dtype, copy=False))
    except (ValueError, FloatingPointError) as error:
        reject_values(source, dtype, name, error)
    exact = dtype.kind not in "iu" or array.dtype.kind not in "iuf" or (cast == array).all()
    if not exact or (dtype.kind == "O" and array.dtype.kind not in "OSU"):
        reject_values(source, dtype, name)
    return cast


def sizes_match(sizes: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Return whether sizes are the expected ones, of which None is any size."""
    return len(sizes) == len(expected) and all(e in (None, d) for e, d in zip(expected, sizes, strict=True))
