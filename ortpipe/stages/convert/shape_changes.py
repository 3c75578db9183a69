"""Changes of shape between an activation and the output: tracing an axis through them, and repeating them."""

from collections.abc import Sequence

import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder

SILENT = ("Identity", "Cast", "Clip")  # which keep every value in its place


def nodes_between(value: ir.Value, output: ir.Value) -> list[ir.Node]:
    """Return the nodes that lead from a value to an output, each by its first input."""
    nodes = list[ir.Node]()
    while output is not value:
        node = output.producer()
        assert node is not None
        assert node.inputs[0] is not None
        nodes.insert(0, node)
        output = node.inputs[0]
    return nodes


def axis_after(axis: int, nodes: Sequence[ir.Node]) -> int | None:
    """Return where an axis of the first node's input ends up in the last one's output; None: unknown or reordered."""
    for node in nodes:
        value, shape = node.inputs[0], node.outputs[0].shape
        if node.op_type in SILENT:
            continue
        if value is None or value.shape is None or shape is None:
            return None
        rank, new_axis = value.shape.rank(), None
        match node.op_type:
            case "Transpose":
                new_axis = list(node.attributes.get_ints("perm", list(range(rank))[::-1])).index(axis)
            case "Squeeze" if (axes := query.axes(node, rank)) is not None and axis not in axes:
                new_axis = axis - sum(a < axis for a in axes)
            case "Unsqueeze" if (axes := query.axes(node, shape.rank())) is not None:
                new_axis = [a for a in range(shape.rank()) if a not in axes][axis]
            case "Reshape" | "Flatten" if shape.rank() > 1 and isinstance(value.shape[axis], int):
                if axis == rank - 1 and shape[-1] == value.shape[axis]:  # axes in front of it may merge or split
                    new_axis = shape.rank() - 1
                elif axis == 1 and shape[1] == value.shape[1] and shape[0] == value.shape[0]:
                    new_axis = 1
        if new_axis is None:
            return None
        axis = new_axis
    return axis


def reapply(op: Builder, nodes: Sequence[ir.Node], value: ir.Value) -> ir.Value:
    """Apply the shape changes of these nodes to another value."""
    for node in nodes:
        if node.op_type not in SILENT:
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            result = getattr(op, node.op_type)(value, *node.inputs[1:], **attributes)
            result.type, result.shape = value.type, node.outputs[0].shape
            value = result
    return value
