"""Dropout whose masks follow from a seed that is an input, so that every slice draws the same masks on any worker.

onnxruntime's generators continue from run to run. Here a mask is computed instead: the uniform number of an element is
a hash (lowbias32 of Wellons' hash prospector) of its place, its node and the seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import TrainError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.operators import is_random

SEED = "slice/seed"  # the name of the input, a whole number below 2³²
BITS, FRACTION = 32, 24  # of a hash, and of it in a uniform number


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
