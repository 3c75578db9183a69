"""A model for batches of one size becomes one for any: freed where that is the same, else run batch after batch."""

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
from ortpipe.stages.convert.free import freed
from ortpipe.stages.convert.heads import Head
from ortpipe.stages.convert.inputs import turn
from ortpipe.stages.convert.original import Original
from ortpipe.stages.convert.row_scan import scanned

Axes = dict[str, int]
Wrapped = tuple[Head, ir.Value]

RELATIVE = {"float64": 1e-6, "float32": 1e-3}  # how far results may be apart, by their type; others 2e-2
NOTHING_PROVED = "is the same for all rows that were tried, which proves nothing"
UNKNOWN = 16  # the size of a dimension that nobody names, of rows that are made up


def fixed_batch(graph: ir.Graph) -> int | None:
    """Return how many rows all data inputs have, None where that is free."""
    inputs = query.data_inputs(graph)
    sizes = {v.shape[0] if isinstance(v.shape[0], int) else None for v in inputs if v.shape}
    if sizes <= {None}:
        return None
    if len(sizes) == 1:
        [size] = sizes
        return size
    first = next(v.name for v in inputs if v.shape and isinstance(v.shape[0], int))
    raise ConvertError(
        "The first dimension of every data input is the rows.",
        got=f"inputs {', '.join(f'{v.name} {type_of(v)}' for v in inputs)}",
        fix=f"Give inputs that are no data a value ({{at}}fixed={{{first}: 0}}), or name the axis of rows where it "
        f"is another ({{at}}batch_axis={{{first}: 1}}).",
    )


def set_free(
    model: ir.Model, original: Original, wanted: Sequence[str], data: Data | None
) -> tuple[ir.Model, Axes] | str:
    """Return the model for any number of rows, once it gives what the original gives; else why there is none.

    Outputs that are not the same, or have no rows, are left out unless they are wanted; those that have them on
    another axis are turned.
    """
    size = original.batch
    assert size is not None
    try:
        own = freed(model, size)
        inference = own.clone()
        to_inference(inference)
        proto = finish(inference)
        rows = _rows(proto, data, 2 * size + 1)
        if isinstance(rows, str):
            return rows
        session, axes = Session(proto), dict[str, int]()
        for output in list(own.graph.outputs):
            name = str(output.name)
            axis, why = _axis_of_rows(session.run(rows, [name])[0], original, rows, name)
            if name in wanted and why is not None:
                return f"{name!r} {why}"
            if why in (None, NOTHING_PROVED):
                axes[name] = axis
            else:
                own.graph.outputs.remove(output)
    except OrtpipeError as error:
        return str(error).splitlines()[1].strip().removeprefix("got: ")[:200]
    turned = {name: axis for name, axis in axes.items() if axis != original.axes.get(name, 0)}
    turn(own.graph, turned)
    return own, turned


def run_in_batches(model: ir.Model, original: Original, heads: Sequence[Wrapped], data: Data | None) -> list[Wrapped]:
    """Run a graph for each batch of rows, in place; return the predictions, each with its head."""
    size = original.batch
    assert size is not None
    rows = _rows(finish(model.clone()), data, size)
    for value in model.graph.outputs:
        if not isinstance(rows, str) and str(value.name) not in original.axes:
            shape = original.once(rows, np.arange(size), str(value.name)).shape
            declared = list(value.shape or shape)
            rest = declared[1:] if len(declared) == len(shape) else [None] * (len(shape) - 1)  # a file may be wrong
            value.shape = ir.Shape([*shape[:1], *rest])
    outputs, apart = model.graph.outputs, [_activation(head, output) for head, output in heads]
    names, wanted = [str(output.name) for _, output in heads], list[ir.Value]()
    for (head, output), node in zip(heads, apart, strict=True):
        wanted.append(output)
        if node is not None and head.logits is not None:  # what is behind the logits is written behind the batches
            wanted[-1], output.name = head.logits, f"{output.name}/batch"
            head.logits.shape = head.logits.shape or output.shape
            outputs[outputs.index(output)] = head.logits
    others = [v for v in outputs if v not in wanted and v.shape and v.shape[0] == size]
    new, found = scanned(model, size, list(dict.fromkeys([*wanted, *others]))), list[Wrapped]()
    for (head, _), node, value, name in zip(heads, apart, wanted, names, strict=True):
        logits = new.get(head.logits) if head.logits is not None else None
        output = new[value] if node is None else _behind(model.graph, new[value], node, name)
        found.append((dataclasses.replace(head, logits=logits), output))
    name_batch(model)
    return found


def _activation(head: Head, output: ir.Value) -> ir.Node | None:
    """Return the node that makes a prediction of its logits alone, where these are no output of their own."""
    node, logits = output.producer(), head.logits
    plain = node is not None and node.op_type in ("Sigmoid", "Softmax") and node.inputs[0] is logits
    return node if plain and logits is not None and not logits.is_graph_output() else None


def _behind(graph: ir.Graph, logits: ir.Value, node: ir.Node, name: str) -> ir.Value:
    """Return the activation of all rows' logits, as the output that they stood for."""
    op, axis = Builder(graph, "rows"), node.attributes.get_int("axis", -1)
    result: ir.Value = op.Sigmoid(logits) if node.op_type == "Sigmoid" else op.Softmax(logits, axis=axis)
    result.name, result.type, result.shape = name, logits.type, logits.shape
    graph.outputs[graph.outputs.index(logits)] = result
    return result


def _axis_of_rows(
    got: np.ndarray, original: Original, rows: Mapping[str, np.ndarray], output: str
) -> tuple[int, str | None]:
    """Return the axis on which a result is row by row what the original gives; or the first, and why it is not."""
    count = len(next(iter(rows.values())))
    first = original.axes.get(output, 0)
    why = _same(got, original.run(rows, output), count)
    if why in (None, NOTHING_PROVED):
        return first, why
    for axis in range(1, got.ndim):
        if (
            got.shape[axis] == count
            and _same(np.moveaxis(got, axis, 0), original.run(rows, output, axis), count) is None
        ):
            return axis, None
    return first, why


def _rows(model: onnx.ModelProto, data: Data | None, count: int) -> Mapping[str, np.ndarray] | str:
    """Return real rows, or random ones, as the model takes them; else why there are none."""
    names = tuple(v.name for v in model.graph.input if v.name not in {t.name for t in model.graph.initializer})
    if data is not None:
        few = data.train.head(count)
        rows = feed_inputs(model, Facts("regression", names, (), "", ()), few)
        return {name: array[np.arange(count) % len(array)] for name, array in rows.items()}
    rng, made = np.random.default_rng(0), {}
    for value in model.graph.input:
        if value.name not in names:
            continue
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dims = [d.dim_value or UNKNOWN for d in value.type.tensor_type.shape.dim][1:]
        if kind.kind == "f":
            made[value.name] = rng.normal(size=(count, *dims)).astype(kind)
        elif kind.kind in "iub":
            made[value.name] = rng.integers(0, 256 if kind == np.uint8 else 2, (count, *dims)).astype(kind)
        else:
            return f"there are no rows to verify it on, and random ones of {kind} are none"
    return made


def _same(got: np.ndarray, expected: np.ndarray, count: int) -> str | None:
    """Return in which way a result is not row by row what the original gives, None where it is."""
    if got.shape != expected.shape or len(got) != count:
        return f"has shape {list(got.shape)} of all rows together, {list(expected.shape)} one after another"
    if expected.dtype.kind not in "fiub":
        return None if (got == expected).all() else "differs"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    largest = np.abs(b).max(initial=0)
    relative = RELATIVE.get(expected.dtype.name, 2e-2)
    allowed = relative * np.abs(b) + relative / 100 * largest
    if not (np.abs(a - b) <= allowed).all():
        return f"differs by {np.abs(a - b).max():.2g} from what rows give one after another"
    if (np.abs(b - b[:1]) <= allowed).all():
        return NOTHING_PROVED
    return None
