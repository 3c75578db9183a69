"""Taking out of a step what is no step's own work: it is done for all steps at once, in front of the Scan."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.operators import BROADCASTING, PREDICATES
from ortpipe.stages.train.epoch import EpochGraph

# Done entry by entry; of the others of one input, bytes might depend on how many entries a kernel does at once.
ELEMENTWISE = BROADCASTING | PREDICATES | {"Abs", "Cast", "Exp", "Log", "Neg", "Reciprocal", "Sqrt"}


def hoist(epoch: EpochGraph) -> None:
    """Let steps find ready what depends, row by row, on constants and the scanned values alone.

    A step is the faster the fewer its nodes: the sign and quotients of its learning rate, the one-hot form of its
    labels become one array for all steps. None has more elements than the largest array that a step reads anyway.
    """
    scan, body = epoch.scan, epoch.body
    count = scan.attributes["num_scan_inputs"].as_int()
    carried, scanned = body.inputs[:-count], body.inputs[-count:]
    ahead = dict(zip(scanned, scan.inputs[-count:], strict=True))  # value of a step → that of all steps
    fixed: dict[ir.Value, ir.Value] = {}  # value of every step → the same
    largest = max(_elements(value) for value in scanned)
    op, moved = Builder(epoch.model.graph, "ahead", before=scan), dict[ir.Node, None]()
    available = {*ahead}
    for node in body:
        if not _can_move(node, available, largest):
            continue
        target = ahead if any(x in ahead for x in node.inputs) else fixed
        target[node.outputs[0]] = _moved(op, node, ahead, fixed)
        available.add(node.outputs[0])
        moved[node] = None
    for value in [node.outputs[0] for node in moved]:
        if all(use.node in moved for use in value.uses()):
            continue
        read = fixed.get(value) or ir.Value(name=f"{value.name}/ahead", type=value.type, shape=value.shape)
        ir.convenience.replace_all_uses_with(value, read)
        if value in ahead:
            ahead[read] = ahead[value]
            scanned.append(read)
    body.remove(reversed(moved), safe=True)
    scanned = [value for value in scanned if value.uses()]
    body.inputs[:] = [*carried, *scanned]
    scan.resize_inputs(len(body.inputs))
    for place, value in enumerate(scanned, start=len(carried)):
        scan.replace_input_with(place, ahead[value])
    scan.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(scanned))


def _can_move(node: ir.Node, available: set[ir.Value], largest: int) -> bool:
    if node.domain or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return False
    [result], data = node.outputs, node.inputs
    if (
        node.op_type == "ReduceSum"
        and len(data) == 2
        and _rank(result) == _rank(data[0])
        and query.constant(data[1]) is not None
    ):
        return data[0] in available
    fits = node.op_type in ELEMENTWISE and result.dtype is not None and 0 <= _elements(result) <= largest
    return fits and all(x is None or x in available or query.constant(x) is not None for x in data)


def _moved(
    op: Builder, node: ir.Node, ahead: Mapping[ir.Value, ir.Value | None], fixed: Mapping[ir.Value, ir.Value]
) -> ir.Value:
    """Write a node in front of the Scan; operands of fewer dimensions get the missing ones behind that of the steps."""
    [result] = node.outputs
    rank, operands = _rank(result), list[ir.Value | None]()
    for x in node.inputs:
        if x is None or x in fixed:
            operands.append(None if x is None else fixed[x])
        elif x not in ahead:
            constant = query.constant(x)
            assert constant is not None
            operands.append(op.const(constant % rank - rank if node.op_type == "ReduceSum" else constant))
        elif _rank(x) < rank:
            operands.append(op.Unsqueeze(ahead[x], op.const(np.arange(1, 1 + rank - _rank(x)))))
        else:
            operands.append(ahead[x])
    written: ir.Value = getattr(op, node.op_type)(*operands, **{name: a.value for name, a in node.attributes.items()})
    written.type = result.type
    return written


def _rank(value: ir.Value | None) -> int:
    return value.shape.rank() if value is not None and value.shape is not None else -1


def _elements(value: ir.Value) -> int:
    """Return how many elements a value has in a step; −1 where that is not known."""
    static = value.shape is not None and all(isinstance(d, int) for d in value.shape)
    return math.prod(value.shape.numpy()) if static and value.shape is not None else -1
