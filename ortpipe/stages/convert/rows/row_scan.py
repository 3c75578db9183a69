"""Running a model of a fixed batch size on any number of rows: batch by batch, in a Scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names


def scan_batches(model: ir.Model, size: int, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Put a whole graph into the body of a Scan over batches of `size` rows, in place.

    Copies of the last row fill up the last batch. Initializers stay outside, where training finds them.

    Args:
        model: its inputs have `size` rows.
        size: the batch size.
        outputs: values to compute for all rows, which they have first.

    Returns:
        The values for all rows, by value; the former outputs among them become the model's outputs.
    """
    graph, names = model.graph, Names(used_names(model.graph))
    data, former_outputs, nodes = query.data_inputs(graph), [v for v in graph.outputs if v in outputs], list(graph)
    graph.outputs.clear()
    graph.remove(nodes)
    body = ir.Graph([], [], nodes=nodes, opset_imports=graph.opset_imports, name="batch")
    op, front = Builder(graph, "rows", names=names), Builder(body, "batch", before=nodes[0], names=names)
    count, batches = op.Gather(op.Shape(data[0]), op.const([0])), []
    for value in data:
        dims, uses = list(value.shape or ())[1:], [use for use in value.uses() if use[0].graph is not graph]
        value.shape = ir.Shape(["N", *dims])
        batch = front.placeholder(f"{value.name}/batch", value, ir.Shape([size, *dims]))
        body.inputs.append(batch)
        for node, place in uses:
            node.replace_input_with(place, batch)
        batches.append(op.Unsqueeze(value, [1]) if size == 1 else _batches(op, value, count, size))
    names_by_output = {v: str(v.name) for v in outputs}
    for value in outputs:
        value.name = names.fresh(f"{value.name}/batch")
        body.outputs.append(value)
    results = op.Scan(*batches, body=body, num_scan_inputs=len(batches), outputs=len(outputs))
    stacked = dict[ir.Value, ir.Value]()
    for value, result in zip(outputs, [results] if isinstance(results, ir.Value) else results, strict=True):
        dims = list(value.shape or ())[1:]
        result.type, result.shape = value.type, ir.Shape([None, size, *dims])
        rows = op.Squeeze(result, [1]) if size == 1 else _rows(op, result, count, dims)
        rows.name, rows.type, rows.shape = names_by_output[value], value.type, ir.Shape(["N", *dims])
        stacked[value] = rows
    graph.outputs.extend(stacked[v] for v in former_outputs)
    return stacked


def _batches(op: Builder, value: ir.Value, count: ir.Value, size: int) -> ir.Value:
    """Return rows [N, …] as batches [⌈N / size⌉, size, …]."""
    padded = op.Squeeze(op.Mul(op.Div(op.Add(count, op.const([size - 1])), op.const([size])), op.const([size])))
    zero, one = op.const(np.array(0, np.int64)), op.const(np.array(1, np.int64))
    places = op.Min(op.Range(zero, padded, one), op.Sub(count, op.const([1])))
    return op.Gather(value, op.Reshape(places, op.const([-1, size])))


def _rows(op: Builder, batches: ir.Value, count: ir.Value, dims: Sequence[object]) -> ir.Value:
    """Return batches as rows, without the copies that fill up the last batch."""
    sizes = op.const([-1, *dims]) if all(isinstance(d, int) for d in dims) else None  # Slice hides the sizes
    target = sizes or op.Concat(op.const([-1]), op.Shape(batches, start=2), axis=0)
    rows = op.Slice(op.Reshape(batches, target), op.const([0]), count, op.const([0]))
    return rows if sizes is None or not dims else op.Reshape(rows, sizes)
