"""Add the gradients of a scalar, such as a loss, to the graph that computes it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx_ir import Graph
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ortpipe.autodiff.backward import Backward
from ortpipe.autodiff.table import EXPANSIONS, RULES
from ortpipe.autodiff.walk import gradients
from ortpipe.doors import later
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having

if TYPE_CHECKING:
    from ortpipe.autodiff.expand import expanded
else:
    later(__name__)


def with_gradients(model: ir.Model, loss: str, targets: Sequence[str]) -> tuple[ir.Model, dict[str, str]]:
    """Return the model with gradients as further outputs, and the name of each target's gradient.

    A target on which the loss does not depend has none. The given model may be modified.

    Raises:
        DeriveError: an operator between a target and the loss has no rule; the error names its node.
    """
    if model.functions or not all(map(_is_plain, model.graph.all_nodes())):
        model = expanded(model, [loss], targets)
    graph = model.graph
    without_identities(graph)
    merge_repeated(model)
    op = Backward(graph, RULES)
    by_name = query.values(graph)
    output = by_name[loss]
    gradient_by_target = gradients(op, [(output, op.like(1, output))], [by_name[name] for name in targets])
    graph.outputs.extend(dict.fromkeys(gradient_by_target.values()))
    return model, {str(target.name): str(gradient.name) for target, gradient in gradient_by_target.items()}


def _is_plain(node: ir.Node) -> bool:
    """Return whether a node stays as it is when others are expanded: it has a rule, and computes no sizes."""
    if node.op_type == "Constant":
        return True
    if node.domain or node.op_type not in RULES or node.op_type in ("If", *EXPANSIONS):
        return False
    schema = onnx.defs.get_schema(node.op_type)
    has_defaults = schema.attributes and (schema.has_function or schema.has_context_dependent_function)
    return not has_defaults and all(y.dtype in query.FLOATS for y in node.outputs)


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
