"""A model for batches of one size, run over any number of rows: batch after batch, in a Scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names


def scanned(model: ir.Model, size: int, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Put a whole graph into the body of a Scan over batches of `size` rows, in place.

    The last row fills the last batch. Initializers stay outside, where training finds them. An output whose first
    dimension is not that size, of a model that takes one row, gets an axis of rows.

    Args:
        model: its inputs have `size` rows.
        size: of a batch.
        outputs: the values that are wanted for all rows.

    Returns:
        What stands for each of those values now; the model's outputs are those of them that were outputs.
    """
    graph, names = model.graph, Names(used_names(model.graph))
    data, wanted = query.data_inputs(graph), [v for v in graph.outputs if v in outputs]
    nodes, public = list(graph), {v: str(v.name) for v in outputs}
    graph.outputs.clear()
    graph.remove(nodes)
    body = ir.Graph([], [], nodes=nodes, opset_imports=graph.opset_imports, name="batch")
    first, op, inner = nodes[0], Builder(graph, "rows", names=names), Builder(body, "batch", names=names)
    front = Builder(body, "batch", before=first, names=names)
    count, steps = op.Gather(op.Shape(data[0]), op.const([0])), []
    for value in data:
        dims = list(value.shape or ())[1:]
        uses = list(value.uses())
        value.shape = ir.Shape(["N", *dims])
        one = front.placeholder(f"{value.name}/batch", value, ir.Shape(dims if size == 1 else [size, *dims]))
        body.inputs.append(one)
        read = one
        if size == 1:
            read = front.Unsqueeze(one, [0])
            read.type, read.shape = value.type, ir.Shape([1, *dims])
        for node, place in uses:
            if node.graph is not graph:
                node.replace_input_with(place, read)
        steps.append(value if size == 1 else _batches(op, value, count, size, dims))
    stacked = []
    for value in outputs:
        dims = list(value.shape or ())
        value.name = names.fresh(f"{public[value]}/batch")
        if size == 1:
            rest = dims[1:] if dims and dims[0] == 1 else dims
            result = inner.Squeeze(value, [0]) if dims and dims[0] == 1 else inner.Identity(value)
            result.type, result.shape = value.type, ir.Shape(rest)
        else:
            result, rest = value, dims[1:]
        body.outputs.append(result)
        stacked.append(rest)
    found = op.Scan(*steps, body=body, num_scan_inputs=len(steps), outputs=len(outputs))
    found = [found] if isinstance(found, ir.Value) else list(found)
    new: dict[ir.Value, ir.Value] = {}
    for value, result, rest in zip(outputs, found, stacked, strict=True):
        result.type = value.type
        if size == 1:
            result.shape = ir.Shape(["N", *rest])
        else:
            result.shape = ir.Shape([None, size, *rest])
            joined = op.Reshape(result, _shape(op, [-1], result, 2, rest))
            result = op.Slice(joined, op.const([0]), count, op.const([0]))
            if rest and all(isinstance(d, int) for d in rest):  # behind a Slice to here, inference knows no size
                result = op.Reshape(result, op.const([-1, *rest]))
            result.type, result.shape = value.type, ir.Shape(["N", *rest])
        result.name = public[value]
        new[value] = result
    graph.outputs.extend(new[v] for v in wanted)
    return new


def _batches(op: Builder, value: ir.Value, count: ir.Value, size: int, dims: Sequence[object]) -> ir.Value:
    """Return rows [N, …] as batches [⌈N / size⌉, size, …]."""
    batches = op.Div(op.Add(count, op.const([size - 1])), op.const([size]))
    zero, one = op.const(np.array(0, np.int64)), op.const(np.array(1, np.int64))
    places = op.Range(zero, op.Squeeze(op.Mul(batches, op.const([size]))), one)
    rows = op.Gather(value, op.Min(places, op.Sub(count, op.const([1]))))
    return op.Reshape(rows, _shape(op, [-1, size], rows, 1, dims))


def _shape(op: Builder, front: list[int], value: ir.Value, skip: int, dims: Sequence[object]) -> ir.Value:
    """Return these sizes and a value's own behind its first ones, where they are known as a constant."""
    if all(isinstance(d, int) for d in dims):
        return op.const(np.array([*front, *dims], np.int64))
    return op.Concat(op.const(front), op.Gather(op.Shape(value), op.const([*range(skip, skip + len(dims))])), axis=0)
