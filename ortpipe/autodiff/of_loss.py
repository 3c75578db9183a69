"""Add the gradients of a scalar, such as a loss, to the graph that computes it."""

from collections.abc import Sequence

import onnx_ir as ir

from ortpipe.autodiff.backward import Backward
from ortpipe.autodiff.expand import expanded, merge_repeated, without_identities
from ortpipe.autodiff.rules import RULES
from ortpipe.autodiff.walk import gradients
from ortpipe.graph.core import query


def with_gradients(model: ir.Model, loss: str, targets: Sequence[str]) -> tuple[ir.Model, dict[str, str]]:
    """Return the model with gradients as further outputs, and the name of each target's gradient.

    A target on which the loss does not depend has none. The given model may be modified.

    Raises:
        DeriveError: an operator between a target and the loss has no rule; the error names its node.
    """
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
