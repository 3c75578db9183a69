"""Running a model of a fixed batch size on any number of rows: batch by batch, in a Scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names


def scan_batches(model: ir.Model, size: int, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Put a whole graph into the body of a Scan over batches of `size` rows, in place.

    Copies of the last row fill up the last batch. Initializers stay outside, where training finds them. If `size` is
    1, an output without an axis of rows gets one.

    Args:
        model: its inputs have `size` rows.
        size: the batch size.
        outputs: values to compute for all rows.

    Returns:
        Each of those values → its value for all rows; the former outputs among them become the model's outputs.
    """
    graph, names = model.graph, Names(used_names(model.graph))
    data, former_outputs = query.data_inputs(graph), [v for v in graph.outputs if v in outputs]
    nodes, names_by_output = list(graph), {v: str(v.name) for v in outputs}
    graph.outputs.clear()
    graph.remove(nodes)
    body = ir.Graph([], [], nodes=nodes, opset_imports=graph.opset_imports, name="batch")
    first, op, inner = nodes[0], Builder(graph, "rows", names=names), Builder(body, "batch", names=names)
    front = Builder(body, "batch", before=first, names=names)
    count, scan_inputs = op.Gather(op.Shape(data[0]), op.const([0])), []
    for value in data:
        dims = list(value.shape or ())[1:]
        uses = list(value.uses())
        value.shape = ir.Shape(["N", *dims])
        batch = front.placeholder(f"{value.name}/batch", value, ir.Shape(dims if size == 1 else [size, *dims]))
        body.inputs.append(batch)
        batch_of_rows = batch
        if size == 1:
            batch_of_rows = front.Unsqueeze(batch, [0])
            batch_of_rows.type, batch_of_rows.shape = value.type, ir.Shape([1, *dims])
        for node, place in uses:
            if node.graph is not graph:
                node.replace_input_with(place, batch_of_rows)
        scan_inputs.append(value if size == 1 else _batches(op, value, count, size, dims))
    dims_by_output = []
    for value in outputs:
        dims = list(value.shape or ())
        value.name = names.fresh(f"{names_by_output[value]}/batch")
        if size == 1:
            dims_of_row = dims[1:] if dims and dims[0] == 1 else dims
            result = inner.Squeeze(value, [0]) if dims and dims[0] == 1 else inner.Identity(value)
            result.type, result.shape = value.type, ir.Shape(dims_of_row)
        else:
            result, dims_of_row = value, dims[1:]
        body.outputs.append(result)
        dims_by_output.append(dims_of_row)
    scan_outputs = op.Scan(*scan_inputs, body=body, num_scan_inputs=len(scan_inputs), outputs=len(outputs))
    scan_outputs = [scan_outputs] if isinstance(scan_outputs, ir.Value) else list(scan_outputs)
    stacked: dict[ir.Value, ir.Value] = {}
    for value, result, dims_of_row in zip(outputs, scan_outputs, dims_by_output, strict=True):
        result.type = value.type
        if size == 1:
            result.shape = ir.Shape(["N", *dims_of_row])
        else:
            result.shape = ir.Shape([None, size, *dims_of_row])
            joined = op.Reshape(result, _shape(op, [-1], result, 2, dims_of_row))
            result = op.Slice(joined, op.const([0]), count, op.const([0]))
            if dims_of_row and all(isinstance(d, int) for d in dims_of_row):  # Slice hides the sizes
                result = op.Reshape(result, op.const([-1, *dims_of_row]))
            result.type, result.shape = value.type, ir.Shape(["N", *dims_of_row])
        result.name = names_by_output[value]
        stacked[value] = result
    graph.outputs.extend(stacked[v] for v in former_outputs)
    return stacked


def _batches(op: Builder, value: ir.Value, count: ir.Value, size: int, dims: Sequence[object]) -> ir.Value:
    """Return rows [N, …] as batches [⌈N / size⌉, size, …]."""
    batches = op.Div(op.Add(count, op.const([size - 1])), op.const([size]))
    zero, step = op.const(np.array(0, np.int64)), op.const(np.array(1, np.int64))
    row_indices = op.Range(zero, op.Squeeze(op.Mul(batches, op.const([size]))), step)
    rows = op.Gather(value, op.Min(row_indices, op.Sub(count, op.const([1]))))
    return op.Reshape(rows, _shape(op, [-1, size], rows, 1, dims))


def _shape(op: Builder, front: list[int], value: ir.Value, skip: int, dims: Sequence[object]) -> ir.Value:
    """Return the sizes `front`, then the value's from axis `skip` on; a constant if they are known."""
    if all(isinstance(d, int) for d in dims):
        return op.const(np.array([*front, *dims], np.int64))
    return op.Concat(op.const(front), op.Gather(op.Shape(value), op.const([*range(skip, skip + len(dims))])), axis=0)
