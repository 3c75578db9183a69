"""Add the gradients of a scalar, such as a loss, to the graph that computes it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ortpipe.autodiff.backward import SIMPLIFIER, Backward
from ortpipe.autodiff.table import EXPANSIONS, RULES
from ortpipe.autodiff.walk import gradients
from ortpipe.doors import later
from ortpipe.graph.core import query

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
    if SIMPLIFIER is not None:
        SIMPLIFIER.prepare(model)
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
