"""The one driver of rewriting: nodes that have a rule make way for what the rule writes, and names of values stay."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from ortpipe.graph.builder import Builder, Names, used_names

# (op, node) → the values of the node's outputs, written in front of it (None for an output that nobody reads);
# None leaves the node as it is.
Rewrite = Callable[[Builder, ir.Node], Sequence[ir.Value | None] | None]


def rewrite(
    graph: ir.Graph, table: Mapping[str, Rewrite], domain: str = "", nodes: Iterable[ir.Node] | None = None
) -> None:
    """Rewrite in place a graph's nodes, or some of them (of its subgraphs too), of the operators in the table."""
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
    """Put new values in the place of a node's outputs, under their names, types and shapes, and remove the node."""
    assert isinstance(node.graph, ir.Graph)
    for old, new in zip(node.outputs, values, strict=False):
        if new is not None:
            new.type = old.type or new.type
            new.shape = old.shape if old.shape is not None else new.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            new.name, old.name = old.name, None
    node.graph.remove(node, safe=True)
