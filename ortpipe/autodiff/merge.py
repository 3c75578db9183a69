"""Remove nodes that copy a value, and compute equal expressions once."""

import onnx_ir as ir
from onnx_ir import Graph
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ortpipe.graph.core.operators import having


def without_identities(graph: Graph) -> None:
    """Remove Identity nodes and casts to a value's own type, except those that name a graph's output.

    A subgraph must compute its outputs.
    """
    for node in list(graph.all_nodes()):
        if node.domain or node.op_type not in ("Identity", "Cast"):
            continue
        x, y = node.inputs[0], node.outputs[0]
        assert x is not None and node.graph is not None
        same = node.op_type == "Identity" or x.dtype == node.attributes["to"].as_int()
        if same and not y.is_graph_output():
            x.type, x.shape = x.type or y.type, x.shape or y.shape
            ir.convenience.replace_all_uses_with(y, x)
            node.graph.remove(node, safe=True)


def merge_repeated(model: ir.Model) -> None:
    """Compute equal expressions once, except for random operators: each node draws its own numbers."""
    drawing = [node for node in model.graph.all_nodes() if node.op_type in having("random")]
    for number, node in enumerate(drawing):
        node.attributes["ortpipe.draw"] = ir.AttrInt64("ortpipe.draw", number)
    CommonSubexpressionEliminationPass()(model)
    for node in drawing:
        del node.attributes["ortpipe.draw"]
