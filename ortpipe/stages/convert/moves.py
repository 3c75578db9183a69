"""What changes the shape or type of values between an activation and the output: followed, and written again."""

from collections.abc import Sequence

import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder

SILENT = ("Identity", "Cast", "Clip")  # every value stays in its place


def between(value: ir.Value, output: ir.Value) -> list[ir.Node]:
    """Return the nodes that lead from a value to an output, each by its first input."""
    nodes = list[ir.Node]()
    while output is not value:
        node = output.producer()
        assert node is not None
        assert node.inputs[0] is not None
        nodes.insert(0, node)
        output = node.inputs[0]
    return nodes


def followed(axis: int, nodes: Sequence[ir.Node]) -> int | None:
    """Return where an axis of the first node's input is in the last one's output, with all its values in order."""
    for node in nodes:
        value, after = node.inputs[0], node.outputs[0].shape
        if node.op_type in SILENT:
            continue
        if value is None or value.shape is None or after is None:
            return None
        rank, found = value.shape.rank(), None
        match node.op_type:
            case "Transpose":
                found = list(node.attributes.get_ints("perm", list(range(rank))[::-1])).index(axis)
            case "Squeeze" if (axes := _axes(node, rank)) is not None and axis not in axes:
                found = axis - sum(a < axis for a in axes)
            case "Unsqueeze" if (axes := _axes(node, after.rank())) is not None:
                found = [a for a in range(after.rank()) if a not in axes][axis]
            case "Reshape" | "Flatten" if after.rank() > 1 and isinstance(value.shape[axis], int):
                if axis == rank - 1 and after[-1] == value.shape[axis]:  # whatever the rows in front of it become
                    found = after.rank() - 1
                elif axis == 1 and after[1] == value.shape[1] and after[0] == value.shape[0]:
                    found = 1
        if found is None:
            return None
        axis = found
    return axis


def written_again(op: Builder, nodes: Sequence[ir.Node], value: ir.Value) -> ir.Value:
    """Return another value in the shape that these nodes give."""
    for node in nodes:
        if node.op_type not in SILENT:
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            moved = getattr(op, node.op_type)(value, *node.inputs[1:], **attributes)
            moved.type, moved.shape = value.type, node.outputs[0].shape
            value = moved
    return value


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    constant = query.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = node.attributes.get_ints("axes", None) if constant is None else constant.ravel().tolist()
    return None if axes is None else [int(a) % rank for a in axes]
