"""Move computations out of the step that can run for all steps at once, before or after the Scan."""

import math
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from ortpipe.fast.epoch import EpochGraph
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.operators import having
from ortpipe.stages.train.epoch_graph import BATCHES

# Elementwise operators; with others of one input, rounding might depend on the number of elements per kernel call.
ELEMENTWISE = having("broadcasts", "predicate", "exact")
WHOLE = having("mean")  # reductions over all elements of a step
ALIGNED = 64  # bytes: the order in which a kernel sums depends on the alignment of its operand


def hoist(epoch: EpochGraph) -> None:
    """Precompute values that depend, row by row, only on constants and scanned values.

    A step with fewer nodes is faster: the sign and quotients of its learning rate, or its one-hot labels, become one
    array for all steps. No such array has more elements per step than the largest array that a step reads anyway.
    """
    scan, body = epoch.scan, epoch.body
    count = scan.attributes["num_scan_inputs"].as_int()
    carried, scanned = body.inputs[:-count], body.inputs[-count:]
    ahead = dict(zip(scanned, scan.inputs[-count:], strict=True))  # value in a step → value for all steps
    fixed: dict[ir.Value, ir.Value] = {}  # value that is equal in all steps → its outer value
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
    _scan_only(epoch, {value: ahead[value] for value in scanned if value.uses()}, len(carried))


def sink(epoch: EpochGraph) -> None:
    """Compute losses after the Scan, for all steps at once, from the last value that alone determines a step's loss.

    For a mean squared error this value is the difference, for a cross-entropy the log-probabilities. It must have few
    elements, and no more than the largest array that a step reads anyway.
    """
    scan, body, graph = epoch.scan, epoch.body, epoch.model.graph
    carried = len(body.inputs) - scan.attributes["num_scan_inputs"].as_int()
    scanned = dict(zip(body.inputs[carried:], scan.inputs[carried:], strict=True))
    largest = min(THRESHOLDS.sunk_elements, max(_elements(value) for value in scanned))
    source, moved = _source(body, body.outputs[carried], scanned, largest)
    if not moved:
        return
    ended, loss = scan.outputs[carried], body.outputs[carried]
    ended.type, ended.shape = source.type, ir.Shape([BATCHES, *(source.shape or ())])
    ahead: dict[ir.Value, ir.Value | None] = {**scanned, source: ended}
    op = Builder(graph, "loss", names=Names(used_names(graph)))
    for node in reversed(moved):
        written = ahead[node.outputs[0]] = _moved(op, node, ahead, {})
    body.outputs[carried] = source
    body.remove(moved, safe=True)
    replace_output(graph, carried, written)
    written.type, written.shape = loss.type, ir.Shape([BATCHES])
    _scan_only(epoch, {value: outer for value, outer in scanned.items() if value.uses()}, carried)


def replace_output(graph: ir.Graph, place: int, value: ir.Value) -> None:
    """Replace a graph's output by a value computed from it, under the same name, type and shape."""
    old = graph.outputs[place]
    value.type, value.shape, graph.outputs[place] = old.type, old.shape, value
    old.name, value.name = value.name, old.name


def _source(
    body: ir.Graph, loss: ir.Value, scanned: Collection[ir.Value], largest: int
) -> tuple[ir.Value, list[ir.Node]]:
    """Return a value and the nodes, last first, that compute the loss from it, constants and scanned values only.

    Their results have no other use. Of all such values, return the one with the most nodes after it.
    """
    places = {node: place for place, node in enumerate(body)}
    ends, taken, read = {*body.outputs}, list[ir.Node](), {loss}
    source, count = loss, 0
    while makers := [node for value in read if (node := value.producer()) in places]:
        node = max(makers, key=places.__getitem__)
        value, others = node.outputs[0], {use.node for use in node.outputs[0].uses()}.difference(taken)
        if len(makers) < len(read) or not _can_sink(node) or others:
            break
        taken.append(node)
        at_hand = [x for x in node.inputs if x is None or x in scanned or query.constant(x) is not None]
        read = (read - {value}) | {x for x in node.inputs if x is not None and x not in at_hand}
        [x] = read if len(read) == 1 else [None]
        if x is None or x in ends or x.producer() not in places or not 0 <= _elements(x) <= largest:
            continue
        aligned = x.dtype is not None and _elements(x) * x.dtype.itemsize % ALIGNED == 0
        if aligned or not any(node.op_type in WHOLE for node in taken):
            source, count = x, len(taken)
    return source, taken[:count]


def _can_sink(node: ir.Node) -> bool:
    if node.domain or len(node.outputs) != 1 or _elements(node.outputs[0]) < 0:
        return False
    if node.op_type in WHOLE:
        rank = _rank(node.inputs[0])
        return rank > 0 and query.axes(node, rank) == [*range(rank)] and not node.attributes.get_int("keepdims", 1)
    return node.op_type in ELEMENTWISE and all(_rank(x) >= 0 for x in node.inputs if x is not None)


def _scan_only(epoch: EpochGraph, scanned: Mapping[ir.Value, ir.Value | None], carried: int) -> None:
    """Restrict the Scan's scanned inputs to these values; the carried inputs stay."""
    scan, body = epoch.scan, epoch.body
    body.inputs[:] = [*body.inputs[:carried], *scanned]
    scan.resize_inputs(len(body.inputs))
    for place, outer in enumerate(scanned.values(), start=carried):
        scan.replace_input_with(place, outer)
    scan.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(scanned))


def _can_move(node: ir.Node, available: set[ir.Value], largest: int) -> bool:
    if node.domain or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return False
    [result], data = node.outputs, node.inputs
    if node.op_type == "ReduceSum" and len(data) == 2 and _rank(result) == _rank(data[0]):
        return data[0] in available and query.axes(node, _rank(result)) is not None
    fits = node.op_type in ELEMENTWISE and result.dtype is not None and 0 <= _elements(result) <= largest
    return fits and all(x is None or x in available or query.constant(x) is not None for x in data)


def _moved(
    op: Builder, node: ir.Node, ahead: Mapping[ir.Value, ir.Value | None], fixed: Mapping[ir.Value, ir.Value]
) -> ir.Value:
    """Write a node outside the Scan; operands of lower rank get missing axes after the axis of steps."""
    rank = max(map(_rank, (*node.inputs, *node.outputs)))
    operands = list[ir.Value | None]()
    for x in node.inputs:
        if x is None or x in fixed:
            operands.append(None if x is None else fixed[x])
        elif x not in ahead:
            constant = query.constant(x)
            assert constant is not None
            operands.append(op.const(constant))
        elif _rank(x) < rank:
            operands.append(op.Unsqueeze(ahead[x], op.const(np.arange(1, 1 + rank - _rank(x)))))
        else:
            operands.append(ahead[x])
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if node.op_type in WHOLE:
        operands = [operands[0], op.const(np.array(query.axes(node, rank), np.int64) - rank)]
    written: ir.Value = getattr(op, node.op_type)(*operands, **attributes)
    written.type = node.outputs[0].type
    return written


def _rank(value: ir.Value | None) -> int:
    return value.shape.rank() if value is not None and value.shape is not None else -1


def _elements(value: ir.Value) -> int:
    """Return the number of elements of a value in a step, or −1 if it is unknown."""
    static = value.shape is not None and all(isinstance(d, int) for d in value.shape)
    return math.prod(value.shape.numpy()) if static and value.shape is not None else -1
