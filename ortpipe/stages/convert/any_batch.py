"""Models of a fixed batch size → models of any: rewritten if the results are the same, else run batch by batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Facts
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, OrtpipeError
from ortpipe.graph import query
from ortpipe.graph.batch import name_batch
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish
from ortpipe.graph.modes import to_inference
from ortpipe.graph.show import type_of
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.free_batch import free_batch_size
from ortpipe.stages.convert.heads import Head
from ortpipe.stages.convert.inputs import turn
from ortpipe.stages.convert.original import Original
from ortpipe.stages.convert.row_scan import scan_batches

Axes = dict[str, int]
Wrapped = tuple[Head, ir.Value]

RELATIVE = {"float64": 1e-6, "float32": 1e-3}  # tolerance of results, by type; others 2e-2
INCONCLUSIVE = "is the same for all rows that were tried, which proves nothing"
UNKNOWN_SIZE = 16  # size of a free dimension in random rows


def fixed_batch(graph: ir.Graph) -> int | None:
    """Return the batch size of the data inputs; None if it is free."""
    inputs = query.data_inputs(graph)
    sizes = {v.shape[0] if isinstance(v.shape[0], int) else None for v in inputs if v.shape}
    if sizes <= {None}:
        return None
    if len(sizes) == 1:
        [size] = sizes
        return size
    first = next(v.name for v in inputs if v.shape and isinstance(v.shape[0], int))
    raise ConvertError(
        "The first dimension of every data input must be the rows.",
        got=f"inputs {', '.join(f'{v.name} {type_of(v)}' for v in inputs)}",
        fix=f"Give inputs that are no data a value ({{at}}fixed={{{first}: 0}}), or name the axis of rows if it "
        f"is another ({{at}}batch_axis={{{first}: 1}}).",
    )


def set_free(
    model: ir.Model, original: Original, required: Sequence[str], data: Data | None
) -> tuple[ir.Model, Axes] | str:
    """Return the model for any number of rows, verified against the original; else the reason why it differs.

    Outputs that differ, or have no rows, are left out unless they are required; an axis of rows that is not the first
    is moved there.
    """
    size = original.batch
    assert size is not None
    try:
        free_model = free_batch_size(model, size)
        inference = free_model.clone()
        to_inference(inference)
        proto = finish(inference)
        rows = _rows(proto, data, 2 * size + 1)
        if isinstance(rows, str):
            return rows
        session, axes = Session(proto), dict[str, int]()
        for output in list(free_model.graph.outputs):
            name = str(output.name)
            axis, difference = _axis_of_rows(session.run(rows, [name])[0], original, rows, name)
            if name in required and difference is not None:
                return f"{name!r} {difference}"
            if difference in (None, INCONCLUSIVE):
                axes[name] = axis
            else:
                free_model.graph.outputs.remove(output)
    except OrtpipeError as error:
        return str(error).splitlines()[1].strip().removeprefix("got: ")[:200]
    moved_axes = {name: axis for name, axis in axes.items() if axis != original.axes.get(name, 0)}
    turn(free_model.graph, moved_axes)
    return free_model, moved_axes


def run_in_batches(model: ir.Model, original: Original, heads: Sequence[Wrapped], data: Data | None) -> list[Wrapped]:
    """Put a graph into a loop over batches of rows, in place; return the predictions, each with its head."""
    size = original.batch
    assert size is not None
    rows = _rows(finish(model.clone()), data, size)
    for value in model.graph.outputs:
        if not isinstance(rows, str) and str(value.name) not in original.axes:
            shape = original.once(rows, np.arange(size), str(value.name)).shape
            declared = list(value.shape or shape)
            dims = declared[1:] if len(declared) == len(shape) else [None] * (len(shape) - 1)  # a file may be wrong
            value.shape = ir.Shape([*shape[:1], *dims])
    outputs, nodes = model.graph.outputs, [_last_activation(head, output) for head, output in heads]
    names, values = [str(output.name) for _, output in heads], list[ir.Value]()
    for (head, output), node in zip(heads, nodes, strict=True):
        values.append(output)
        if node is not None and head.logits is not None:  # the activation moves behind the loop
            values[-1], output.name = head.logits, f"{output.name}/batch"
            head.logits.shape = head.logits.shape or output.shape
            outputs[outputs.index(output)] = head.logits
    extra = [v for v in outputs if v not in values and v.shape and v.shape[0] == size]
    stacked, predictions = scan_batches(model, size, list(dict.fromkeys([*values, *extra]))), list[Wrapped]()
    for (head, _), node, value, name in zip(heads, nodes, values, names, strict=True):
        logits = stacked.get(head.logits) if head.logits is not None else None
        output = stacked[value] if node is None else _reapply_activation(model.graph, stacked[value], node, name)
        predictions.append((dataclasses.replace(head, logits=logits), output))
    name_batch(model)
    return predictions


def _last_activation(head: Head, output: ir.Value) -> ir.Node | None:
    """Return the node that computes a prediction from its logits alone, unless these are an output themselves."""
    node, logits = output.producer(), head.logits
    is_activation = node is not None and node.op_type in ("Sigmoid", "Softmax") and node.inputs[0] is logits
    return node if is_activation and logits is not None and not logits.is_graph_output() else None


def _reapply_activation(graph: ir.Graph, logits: ir.Value, node: ir.Node, name: str) -> ir.Value:
    """Apply the activation to all rows' logits, and make the result the output in their place."""
    op, axis = Builder(graph, "rows"), node.attributes.get_int("axis", -1)
    result: ir.Value = op.Sigmoid(logits) if node.op_type == "Sigmoid" else op.Softmax(logits, axis=axis)
    result.name, result.type, result.shape = name, logits.type, logits.shape
    graph.outputs[graph.outputs.index(logits)] = result
    return result


def _axis_of_rows(
    result: np.ndarray, original: Original, rows: Mapping[str, np.ndarray], output: str
) -> tuple[int, str | None]:
    """Return the axis along which a result equals the original's row by row; or the first, and the difference."""
    count = len(next(iter(rows.values())))
    first = original.axes.get(output, 0)
    difference = _difference(result, original.run(rows, output), count)
    if difference in (None, INCONCLUSIVE):
        return first, difference
    for axis in range(1, result.ndim):
        if (
            result.shape[axis] == count
            and _difference(np.moveaxis(result, axis, 0), original.run(rows, output, axis), count) is None
        ):
            return axis, None
    return first, difference


def _rows(model: onnx.ModelProto, data: Data | None, count: int) -> Mapping[str, np.ndarray] | str:
    """Return real or random rows as inputs of the model; else the reason why there are none."""
    names = tuple(v.name for v in model.graph.input if v.name not in {t.name for t in model.graph.initializer})
    if data is not None:
        real_rows = data.train.head(count)
        rows = feed_inputs(model, Facts("regression", names, (), "", ()), real_rows)
        return {name: array[np.arange(count) % len(array)] for name, array in rows.items()}
    rng, random_rows = np.random.default_rng(0), {}
    for value in model.graph.input:
        if value.name not in names:
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dims = [d.dim_value or UNKNOWN_SIZE for d in value.type.tensor_type.shape.dim][1:]
        if dtype.kind == "f":
            random_rows[value.name] = rng.normal(size=(count, *dims)).astype(dtype)
        elif dtype.kind in "iub":
            random_rows[value.name] = rng.integers(0, 256 if dtype == np.uint8 else 2, (count, *dims)).astype(dtype)
        else:
            return f"there are no rows to verify it on, and {dtype} cannot be sampled"
    return random_rows


def _difference(result: np.ndarray, expected: np.ndarray, count: int) -> str | None:
    """Return how a result differs from the original's row by row; None if it does not."""
    if result.shape != expected.shape or len(result) != count:
        return f"has shape {list(result.shape)} of all rows together, {list(expected.shape)} one after another"
    if expected.dtype.kind not in "fiub":
        return None if (result == expected).all() else "differs"
    actual, reference = result.astype(np.float64), expected.astype(np.float64)
    largest = np.abs(reference).max(initial=0)
    relative = RELATIVE.get(expected.dtype.name, 2e-2)
    tolerance = relative * np.abs(reference) + relative / 100 * largest
    if not (np.abs(actual - reference) <= tolerance).all():
        return f"differs by {np.abs(actual - reference).max():.2g} from what rows give one after another"
    if (np.abs(reference - reference[:1]) <= tolerance).all():
        return INCONCLUSIVE
    return None
