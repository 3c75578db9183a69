"""Gradient accumulation: average the gradients of several batches that are read one after another."""

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names

BATCHES = "K"  # the first dimension of values that are read batch by batch


def accumulated(inner: ir.Model, facts: Facts) -> ir.Model:
    """Return the gradient model for K batches [K, N, …]: a Scan that averages their losses and gradients.

    Its outputs are the loss, the gradients and the next running statistics, which are updated after each batch.
    Inputs and outputs keep their names.
    """
    body, names = inner.graph, Names(used_names(inner.graph))
    outer = ir.Graph([], [], nodes=[], opset_imports=dict(inner.opset_imports), name=f"{body.name}/batches")
    op, inside = Builder(outer, "batches", names=names), Builder(body, "batch", names=names)
    batch, moving = query.data_inputs(body), [query.value(body, name) for name in facts.statistics]
    loss, *derivatives = body.outputs
    gradients, following = derivatives[: len(facts.gradients)], derivatives[len(facts.gradients) :]
    outer_values: dict[str, ir.Value] = {}
    for name, value in list(body.initializers.items()):
        outer_values[name] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        outer.register_initializer(outer_values[name])
        outer.inputs.extend([outer_values[name]] if value.is_graph_input() else [])
        body.initializers.pop(name)
        if value not in moving:
            ir.convenience.replace_all_uses_with(value, outer_values[name])
    read = [ir.Value(name=v.name, type=v.type, shape=ir.Shape([BATCHES, *(v.shape or ())])) for v in batch]
    outer.inputs.extend(read)
    public = [(value, str(value.name)) for value in body.outputs]
    for value in (*moving, *batch, *body.outputs):
        inside.rename(value, f"{value.name}/of_batch")
    sums = [inside.placeholder(f"{name}/sum", g, g.shape) for name, g in zip(facts.gradients, gradients, strict=True)]
    totals = [inside.Add(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
    body.inputs[:] = [*sums, *moving, *batch]
    body.outputs[:] = [*totals, *following, loss]
    for value, like in zip(totals, gradients, strict=True):
        value.type, value.shape = like.type, like.shape
    zeros = [
        op.Expand(op.like(0, outer_values[n]), op.const(np.array(outer_values[n].shape, np.int64)))
        for n in facts.gradients
    ]
    start = [*zeros, *(outer_values[name] for name in facts.statistics), *read]
    *ends, losses = op.Scan(*start, outputs=len(body.outputs), body=body, num_scan_inputs=len(read))
    means = [op.Div(end, op.cast(op.Size(losses), g)) for end, g in zip(ends, gradients, strict=False)]
    outer.outputs[:] = [op.ReduceMean(losses, keepdims=0), *means, *ends[len(gradients) :]]
    for value, (like, name) in zip(outer.outputs, public, strict=True):
        value.type, value.shape, value.name = like.type, like.shape, name
    return ir.Model(outer, ir_version=inner.ir_version)
