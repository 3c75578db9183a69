"""Several batches per update: their losses and gradients are averaged, and statistics updated after each."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.stages.train.config import TrainConfig

BATCHES = "K"  # the first dimension of values that are read batch by batch


def updates(config: TrainConfig, chunk: Arrays) -> Iterator[Arrays]:
    """Yield a chunk's full batches; with accumulation, as [updates, K, size, …]: K batches each."""
    steps, rows = next(iter(chunk.values())).shape[:2]
    full_batches, partial_rows = divmod(rows, config.batch_size)
    if config.drop_last and partial_rows:
        chunk = {name: array[:, :-partial_rows] for name, array in chunk.items()}
        rows, partial_rows = rows - partial_rows, 0
    if config.accumulate == 1:
        yield from [chunk] if rows else []
        return
    for first, count, size in ((0, full_batches, config.batch_size), (rows - partial_rows, 1, partial_rows)):
        if count * size:
            cut = slice(first, first + count * size)
            yield {name: a[:, cut].reshape(steps, count, size, *a.shape[2:]) for name, a in chunk.items()}


class _Batch(NamedTuple):
    """The inputs and outputs of the gradients of one batch."""

    moving: Sequence[ir.Value]  # running statistics
    following: Sequence[ir.Value]  # their next values
    read: Sequence[ir.Value]  # rows
    loss: ir.Value
    gradients: Sequence[ir.Value]


def accumulated(inner: ir.Model, facts: Facts) -> ir.Model:
    """Return the gradient model for K batches [K, N, …]: a Scan that averages their losses and gradients.

    Its outputs are the loss, the gradients and the next running statistics, which are updated after each batch.
    Inputs and outputs keep their names.
    """
    body, names = inner.graph, Names(used_names(inner.graph))
    outer = ir.Graph([], [], nodes=[], opset_imports=dict(inner.opset_imports), name=f"{body.name}/batches")
    loss, *derivatives = body.outputs
    count, moving = len(facts.gradients), [query.value(body, name) for name in facts.statistics]
    batch = _Batch(moving, derivatives[count:], query.data_inputs(body), loss, derivatives[:count])
    outer_values = move_initializers(body, outer, moving)
    read = [ir.Value(name=v.name, type=v.type, shape=ir.Shape([BATCHES, *(v.shape or ())])) for v in batch.read]
    outer.inputs.extend(read)
    public = [(value, str(value.name)) for value in body.outputs]
    _sum_gradients(Builder(body, "batch", names=names), [*facts.gradients], batch)
    op = Builder(outer, "batches", names=names)
    zeros = [
        op.Expand(op.like(0, outer_values[n]), op.const(np.array(outer_values[n].shape, np.int64)))
        for n in facts.gradients
    ]
    start = [*zeros, *(outer_values[name] for name in facts.statistics), *read]
    *ends, losses = op.Scan(*start, outputs=len(body.outputs), body=body, num_scan_inputs=len(read))
    means = [op.Div(end, op.cast(op.Size(losses), g)) for end, g in zip(ends, batch.gradients, strict=False)]
    outer.outputs[:] = [op.ReduceMean(losses, keepdims=0), *means, *ends[count:]]
    for value, (like, name) in zip(outer.outputs, public, strict=True):
        value.type, value.shape, value.name = like.type, like.shape, name
    return ir.Model(outer, ir_version=inner.ir_version)


def move_initializers(body: ir.Graph, outer: ir.Graph, moving: Sequence[ir.Value]) -> dict[str, ir.Value]:
    """Move the initializers of the body out; running statistics stay its inputs."""
    outer_values: dict[str, ir.Value] = {}
    for name, value in list(body.initializers.items()):
        outer_values[name] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        outer.register_initializer(outer_values[name])
        outer.inputs.extend([outer_values[name]] if value.is_graph_input() else [])
        body.initializers.pop(name)
        if value not in moving:
            ir.convenience.replace_all_uses_with(value, outer_values[name])
    return outer_values


def _sum_gradients(op: Builder, names: Sequence[str], batch: _Batch) -> None:
    """Turn the gradients of one batch into a Scan's body that carries their sums."""
    body = op.graph
    for value in (*batch.moving, *batch.read, *body.outputs):
        op.rename(value, f"{value.name}/of_batch")
    sums = [op.placeholder(f"{name}/sum", g, g.shape) for name, g in zip(names, batch.gradients, strict=True)]
    totals = [op.Add(total, gradient) for total, gradient in zip(sums, batch.gradients, strict=True)]
    body.inputs[:] = [*sums, *batch.moving, *batch.read]
    body.outputs[:] = [*totals, *batch.following, batch.loss]
    for value, like in zip(totals, batch.gradients, strict=True):
        value.type, value.shape = like.type, like.shape
