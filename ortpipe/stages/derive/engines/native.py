"""Reverse-mode differentiation of an ONNX graph, in standard operators: a walk backwards over a table of rules."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.autodiff.backward import Backward
from ortpipe.autodiff.expand import expanded, merge_repeated, without_identities
from ortpipe.autodiff.rules import RULES
from ortpipe.autodiff.walk import gradients
from ortpipe.graph.core import query
from ortpipe.settings import Config


@dataclass(frozen=True)
class Native(Config):
    """ortpipe's own engine: one vector-Jacobian rule per operator, in `autodiff/rules/`."""

    def __call__(
        self, model: ir.Model, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[ir.Model, dict[str, str]]:
        """See `Engine`. An operator without a rule raises DeriveError, which names its node."""
        model = expanded(model, [loss], (*parameters, *inputs))
        graph = model.graph
        without_identities(graph)
        merge_repeated(model)
        op = Backward(graph, RULES)
        by_name = query.values(graph)
        output, targets = by_name[loss], [by_name[name] for name in (*parameters, *inputs)]
        gradient_by_target = gradients(op, [(output, op.like(1, output))], targets)
        graph.outputs.extend(dict.fromkeys(gradient_by_target.values()))
        return model, {str(target.name): str(gradient.name) for target, gradient in gradient_by_target.items()}
