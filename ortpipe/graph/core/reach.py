"""The values that depend on others, and the nodes that read them."""

from collections.abc import Callable, Collection, Iterable, Iterator

import onnx_ir as ir

from ortpipe.graph.core.query import captured


def dependents(
    nodes: Iterable[ir.Node], values: Iterable[ir.Value], begins: Callable[[ir.Node], bool]
) -> set[ir.Value]:
    """Return the values, the outputs of nodes for which `begins` is true, and all values that depend on these."""
    reached = set(values)
    for node in nodes:
        if begins(node) or any(x in reached for x in (*node.inputs, *captured(node))):
            reached.update(node.outputs)
    return reached


def uses_behind(value: ir.Value, operators: Collection[str]) -> Iterator[tuple[ir.Node, int]]:
    """Yield the uses of a value, and instead of those as the first input of these operators, those of the results."""
    for node, place in value.uses():
        if place == 0 and node.op_type in operators:
            for output in node.outputs:
                yield from uses_behind(output, operators)
        else:
            yield node, place
