"""Replace nodes by a table of rules, each of which writes with a builder."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder, Names, used_names

# (op, node) → new values for the node's outputs, written before the node (None for an output that nothing reads);
# None leaves the node as it is.
Rewrite = Callable[[Builder, ir.Node], Sequence[ir.Value | None] | None]


def rewrite(
    graph: ir.Graph, table: Mapping[str, Rewrite], domain: str = "", nodes: Iterable[ir.Node] | None = None
) -> None:
    """Rewrite the graph's nodes, or `nodes` (also of subgraphs), whose operator has a rule in the table, in place."""
    names = Names(used_names(graph))
    for node in list(graph if nodes is None else nodes):
        if node.op_type in table and node.domain == domain:
            inner = node.graph if isinstance(node.graph, ir.Graph) else graph
            op = Builder(inner, node.name or node.op_type, before=node, names=names)
            with op.formulas():
                values = table[node.op_type](op, node)
            if values is not None:
                replace(node, values)


def replace(node: ir.Node, values: Sequence[ir.Value | None]) -> None:
    """Replace a node's outputs by new values, which take over names, types and shapes, and remove the node."""
    assert isinstance(node.graph, ir.Graph)
    for old, new in zip(node.outputs, values, strict=False):
        if new is not None:
            new.type = old.type or new.type
            new.shape = old.shape if old.shape is not None else new.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            new.name, old.name = old.name, None
    node.graph.remove(node, safe=True)
