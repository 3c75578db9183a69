"""The gradients of a batch in slices: inputs, if workers compute them, or one graph for all slices on devices.

That graph is a Scan over inputs [slices, …], whose results are summed in a fixed order. The slices of a batch may
differ by one row, so only an engine that reads the true number of rows of each slice runs it (`ortpipe.runtime.xla`).

The masks of dropout follow from a seed that is an input, so that every slice draws the same masks on any worker.
onnxruntime's generators continue from run to run. Here a mask is computed instead: the uniform number of an element is
a hash (lowbias32 of Wellons' hash prospector) of its place, its node and the seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Facts
from ortpipe.errors import TrainError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.operators import is_random
from ortpipe.parallel import ParallelConfig
from ortpipe.stages.train.accumulate import move_initializers

SLICES = "slices"  # the name of the Scan, and of the dimension that counts slices
SHARE = "slice/share"  # the name of the input with the share of a batch's rows that each slice has
SEED = "slice/seed"  # the name of the input that seeds dropout, a whole number below 2³²
BITS, FRACTION = 32, 24  # of a hash, and of it in a uniform number
RECEIVED = "received/"  # the prefix of the input that replaces an output


def in_parallel(model: ir.Model, facts: Facts, config: ParallelConfig, wide: ir.DataType) -> ir.Model:
    """Return the gradient model of a step for this kind of training; its updates have the type `wide`."""
    if config.transport == "devices":
        return sliced(model, facts, config.slices, wide)
    if config.every == "step":
        return exchanged(model, facts, wide)
    draw_by_seed(model)
    return model


def exchanged(model: ir.Model, facts: Facts, wide: ir.DataType) -> ir.Model:
    """Return the gradient model with an input of type `wide` in place of the nodes of each output.

    Parameters and running statistics stay, so that a step can carry them.
    """
    graph, old = model.graph, query.values(model.graph)
    shapes = {new: old[name].shape for name, new in (*facts.gradients.items(), *facts.statistics.items())}
    outputs, op = [*graph.outputs], Builder(graph, "received")
    graph.outputs.clear()
    graph.remove([*graph], safe=True)
    carried = {*facts.gradients, *facts.statistics, str(facts.output_gradient)}
    graph.inputs[:] = [value for value in graph.inputs if value.name in carried]
    for name in {*graph.initializers} - carried:
        graph.initializers.pop(name)
    for value in outputs:
        name, kind = str(value.name), value.dtype if value.name in facts.statistics.values() else wide
        shape = shapes.get(name) or ir.Shape(())
        graph.outputs.append(op.Cast(op.input(RECEIVED + name, wide, shape.numpy()), to=kind))
        graph.outputs[-1].name = name
    return model


def sliced(inner: ir.Model, facts: Facts, slices: int, wide: ir.DataType) -> ir.Model:
    """Return the gradient model for a batch cut into slices; losses and gradients are added in the type `wide`."""
    draw_by_seed(inner)
    body, names = inner.graph, Names(used_names(inner.graph))
    outer = ir.Graph([], [], nodes=[], opset_imports=dict(inner.opset_imports), name=f"{body.name}/slices")
    public, read = [(value, str(value.name)) for value in body.outputs], query.data_inputs(body)
    move_initializers(body, outer, ())
    share = ir.val(names.fresh(SHARE), wide, [SLICES])
    outer.inputs.append(share)
    for value in (*read, *(value for node in body.all_nodes() for value in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([f"N/{slices}" if size == "N" else size for size in value.shape])
    for value in read:
        outer.inputs.append(ir.Value(name=value.name, type=value.type, shape=ir.Shape([SLICES, *(value.shape or ())])))
    op = Builder(body, "slice", names=names)
    for value in (*read, *body.outputs):
        op.rename(value, f"{value.name}/of_slice")
    factor, one = op.placeholder("share", share, ir.Shape([])), op.like(1, share)
    body.inputs[:] = [factor, *read]
    unweighted = 1 + len(facts.gradients) if facts.reduction == "sum" else 0  # the sum of a batch is that of its slices
    for number, (value, _) in enumerate(public):
        part = op.Mul(op.cast(value, share), one if number < unweighted else factor)
        part.type, part.shape = ir.TensorType(wide), value.shape
        body.outputs[number] = part
    outside = Builder(outer, "slices", names=names)
    scanned = outer.inputs[-1 - len(read) :]
    stacks = outside.Scan(*scanned, outputs=len(public), body=body, num_scan_inputs=len(scanned))
    stacks[0].producer().name = SLICES
    for stack, (value, name) in zip(stacks, public, strict=True):
        kind = value.dtype if name in facts.statistics.values() else wide
        total = outside.Cast(_tree_sum(outside, stack, slices), to=kind)
        total.shape, total.name = value.shape, name
        outer.outputs.append(total)
    return ir.Model(outer, ir_version=inner.ir_version)


def _tree_sum(op: Builder, parts: ir.Value, count: int) -> ir.Value:
    """Return the sum of parts [count, …] in the order of `ortpipe.parallel.tree_sum`."""
    while count > 1:
        even = count - count % 2
        left, right = (op.Slice(parts, [first], [even], [0], [2]) for first in (0, 1))
        rest = [op.Slice(parts, [even], [count], [0])] if even < count else []
        parts = op.Concat(op.Add(left, right), *rest, axis=0)
        count = count - even // 2
    return op.Squeeze(parts, [0])


def seeds(seed: int, epoch: int, batches: Sequence[int], slice_number: int) -> np.ndarray:
    """Return the seed of a slice in some batches of an epoch, int64 [batches].

    >>> seeds(0, 1, [0, 1], 2).tolist() == [*seeds(0, 1, [0], 2).tolist(), *seeds(0, 1, [1], 2).tolist()]
    True
    """
    draws = [np.random.default_rng([seed, epoch, batch, slice_number]).integers(2**BITS) for batch in batches]
    return np.array(draws, np.int64)


def draw_by_seed(model: ir.Model) -> None:
    """Rewrite each training Dropout so that its mask follows from a new input, `SEED`.

    Raises:
        TrainError: the model draws random numbers by another operator, or inside a loop or branch.
    """
    nodes = [node for node in model.graph.all_nodes() if is_random(node)]
    if not nodes:
        return
    for node in nodes:
        if node.op_type != "Dropout" or node.graph is not model.graph:
            raise TrainError(
                "Of random operators, workers support Dropout outside of loops and branches.",
                got=f"{node.op_type} {node.name or node.outputs[0].name}",
                fix="Set {@train/parallel}=none.",
            )
    seed = ir.val(SEED, ir.DataType.INT64, [])
    model.graph.inputs.append(seed)
    for number, node in enumerate(nodes):
        _write_mask(model.graph, node, seed, number)


def _write_mask(graph: ir.Graph, node: ir.Node, seed: ir.Value, number: int) -> None:
    """Replace a Dropout by x · mask / (1 − ratio)."""
    op = Builder(graph, "draw", before=node)
    x, ratio, training = [*node.inputs, None, None][:3]
    assert x is not None
    active = None if training is None else query.constant(training)
    if active is not None and not active.any():
        return
    with op.formulas():
        share = op.like(0.5, x) if ratio is None else op.cast(ratio, x)
        places = op.Range(op.const(np.int64(0)), op.Size(x), op.const(np.int64(1)))
        hashed = _mix(op, op.BitwiseXor(_mix(op, places + op.const(np.int64(number << BITS - 8))), seed))
        parts = op.Div(hashed, op.const(np.int64(2 ** (BITS - FRACTION))))
        uniform = op.Cast(parts, to=ir.DataType.FLOAT) * 2.0**-FRACTION
        mask = op.Reshape(op.GreaterOrEqual(uniform, op.Cast(share, to=ir.DataType.FLOAT)), op.Shape(x))
        if active is None:
            mask = op.Or(mask, op.Not(training))
            share = op.Where(training, share, op.like(0, x))
        y = op.Where(mask, x / (1 - share), op.like(0, x))
    count = len(node.outputs)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [], node.outputs, (y, mask)[:count])


def _mix(op: Builder, x: Any) -> Any:
    """Return the hash of whole numbers, below 2³²."""
    for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = op.BitwiseAnd(x, op.const(np.int64(2**BITS - 1)))
        x = op.BitwiseXor(x, op.Div(x, op.const(np.int64(2**bits)))) * op.const(np.int64(factor))
    return x
