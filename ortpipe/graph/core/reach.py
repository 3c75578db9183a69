"""The values that depend on others."""

from collections.abc import Callable, Iterable

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
