"""Errors about nodes without a gradient."""

from collections.abc import Iterable
from typing import NoReturn

from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query


def reject_no_rule(op: Backward, node: Node, operands: Iterable[Value | None]) -> NoReturn:
    """Raise an error that lists all values cut off by a node without a rule, so that one more try is enough."""
    behind = query.ancestors(x for x in operands if x is not None)
    cut = sorted(str(x.name) for x in behind & op.active if x.producer() is None)
    raise DeriveError(
        "Every operator that gradients pass through needs a gradient.",
        got=f"{node.op_type} at node {node.name or node.outputs[0].name!r}, which has no rule and cuts off "
        + ", ".join(map(repr, cut)),
        fix=f"Take no gradients with respect to them{{@freeze:[{','.join(cut)}]}}, or add "
        "a rule to its family in ortpipe/autodiff/rules/.",
    )


def reject_quantized(node: Node, name: str | None) -> NoReturn:
    """Raise for a node that computes with quantized values."""
    raise DeriveError(
        "Quantized values may only be moved or dequantized.",
        got=f"{query.called(node)}, which reads the integers of {name!r}",
        fix="Insert DequantizeLinear before it and QuantizeLinear after it, as convert does.",
    )
