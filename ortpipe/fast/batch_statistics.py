"""A pass over an epoch: reuse the batch statistics that BatchNormalization computes in the backward pass."""

import math
from collections.abc import Iterator

import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.stages.train.epoch_graph import EpochGraph


def read_batch_statistics(epoch: EpochGraph) -> None:
    """Output Σx/n and Σ(x − Σx/n)²/n per channel from the node that normalizes x, which saves four passes over x.

    With momentum 0, the node's running statistics are the batch's; running ← m · running + (1 − m) · batch's follows as
    separate nodes. The node gets copies of the running statistics, which onnxruntime's kernel may overwrite.
    """
    names = Names(used_names(epoch.model.graph))
    for node in [node for node in epoch.body.all_nodes() if node.op_type == "BatchNormalization"]:
        if not node.attributes.get_int("training_mode", 0) or not all(map(_carried, node.inputs[3:])):
            continue
        x = node.inputs[0]
        means = list(_averages(x))
        squares = [square for mean in means for square in _squares(x, mean)]
        variances = [variance for square in squares for variance in _averages(square)]
        if means and variances:
            _hand_out(node, names, means, variances)


def _carried(value: ir.Value | None) -> bool:
    """Return whether a value is an input of the step, or its Abs (convert reads running variances through Abs)."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Abs":
        return _carried(node.inputs[0])
    return value is not None and value.is_graph_input()


def _averages(x: ir.Value | None) -> Iterator[ir.Value]:
    """Yield the averages of x over all axes except the second, which keep their axes."""
    if x is None or x.shape is None or not x.shape.is_static():
        return
    sizes = x.shape.numpy()
    axes, count = [0, *range(2, len(sizes))], math.prod(sizes) // max(sizes[1], 1)
    for use in list(x.uses()):
        if use.node.op_type != "ReduceSum" or not use.node.attributes.get_int("keepdims", 1):
            continue
        if query.axes(use.node, len(sizes)) != axes:
            continue
        for further in list(use.node.outputs[0].uses()):
            if further.node.op_type == "Div" and further.idx == 0 and _number(further.node.inputs[1]) == count:
                yield further.node.outputs[0]


def _number(value: ir.Value | None) -> float | None:
    """Return the scalar that a value always equals: a constant, or a quotient or cast of constants."""
    constant, node = query.constant(value), value.producer() if value is not None else None
    if constant is not None:
        return float(constant) if constant.shape == () else None
    if node is None or node.op_type not in ("Cast", "Div"):
        return None
    numbers = [_number(x) for x in node.inputs]
    if node.op_type == "Cast" or None in numbers:
        return numbers[0]
    above, below = numbers
    return above / below if above is not None and below else None


def _squares(x: ir.Value | None, mean: ir.Value) -> Iterator[ir.Value]:
    """Yield (x − mean)²."""
    for use in mean.uses():
        if use.node.op_type == "Sub" and use.node.inputs[0] is x and use.idx == 1:
            [centred] = use.node.outputs
            products = (user.node for user in centred.uses() if user.node.op_type == "Mul" and user.idx == 0)
            yield from (node.outputs[0] for node in products if node.inputs[1] is centred)


def _hand_out(node: ir.Node, names: Names, *statistics: list[ir.Value]) -> None:
    graph, place = node.graph, ir.node("Identity", node.outputs[:1])
    assert isinstance(graph, ir.Graph)
    graph.insert_after(node, place)
    front, behind = (Builder(graph, "batch", before=before, names=names) for before in (node, place))
    momentum = node.attributes.get_float("momentum", 0.9)
    node.attributes["momentum"] = ir.AttrFloat32("momentum", 0.0)
    for i, values in enumerate(statistics):
        old, batch = node.inputs[3 + i], node.outputs[1 + i]
        assert old is not None
        users, ends = list(batch.uses()), [end for end, value in enumerate(graph.outputs) if value is batch]
        node.replace_input_with(3 + i, front.Neg(old))
        moved = behind.Add(
            behind.Mul(old, behind.like(momentum, old)), behind.Mul(batch, behind.like(1 - momentum, old))
        )
        moved.type, moved.shape = batch.type, batch.shape
        for use in users:
            use.node.replace_input_with(use.idx, moved)
        for end in ends:
            graph.outputs[end] = moved
            moved.name, batch.name = batch.name, moved.name
        for value in values:
            wide = behind.Reshape(batch, behind.const([-1 if n == 1 else 1 for n in range(len(value.shape or ()))]))
            wide.type, wide.shape = value.type, value.shape
            ir.convenience.replace_all_uses_with(value, wide)
    graph.remove(place, safe=True)
