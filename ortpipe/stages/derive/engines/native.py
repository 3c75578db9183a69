"""Reverse-mode differentiation of an ONNX graph, in standard operators: a walk backwards over a table of rules."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ortpipe.graph import operators, query
from ortpipe.settings import Config
from ortpipe.stages.derive.backward import Backward
from ortpipe.stages.derive.expand import expanded, without_identities
from ortpipe.stages.derive.rules import RULES
from ortpipe.stages.derive.walk import gradients


@dataclass(frozen=True)
class Native(Config):
    """ortpipe's own engine: one vector-Jacobian rule per operator, in `derive/rules/`."""

    def __call__(
        self, model: ir.Model, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[ir.Model, dict[str, str]]:
        """See `Engine`; an operator on the way without a rule is a DeriveError, which names its node."""
        model = expanded(model, [loss], (*parameters, *inputs))
        graph = model.graph
        without_identities(graph)
        merge_repeated(model)
        op = Backward(graph, RULES)
        by_name = query.values(graph)
        output, targets = by_name[loss], [by_name[name] for name in (*parameters, *inputs)]
        found = gradients(op, [(output, op.like(1, output))], targets)
        graph.outputs.extend(dict.fromkeys(found.values()))
        return model, {str(target.name): str(gradient.name) for target, gradient in found.items()}


def merge_repeated(model: ir.Model) -> None:
    """Compute equal expressions once, but for those that draw at random: every node draws its own."""
    drawing = [node for node in model.graph.all_nodes() if node.op_type in operators.RANDOM]
    for number, node in enumerate(drawing):
        node.attributes["ortpipe.draw"] = ir.AttrInt64("ortpipe.draw", number)
    CommonSubexpressionEliminationPass()(model)
    for node in drawing:
        del node.attributes["ortpipe.draw"]
