"""The predictions that losses of counts and amounts are defined for: a mean above 0, or its logarithm."""

from typing import Literal

import onnx_ir as ir

from ortpipe.errors import LossError
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having

# log: the prediction is log μ, any number; identity: it is μ, which must be positive
Link = Literal["log", "identity"]

POSITIVE_RESULT, NOT_NEGATIVE_RESULT = having("positive"), having("not_negative")
SAME_SIGN = having("moves", "view")


def check_link(prediction: ir.Value, link: Link, loss: str) -> None:
    """Raise LossError for a mean that may be negative, and for a logarithm that is always positive: it is a mean."""
    if link == "log" and is_positive(prediction):
        rule = f"{loss} with link=log needs a prediction that is the logarithm of the mean, any number."
        fix = "Set {key}=identity."
        raise LossError(rule, key="loss.link", got=f"{prediction.name!r}, which is always positive: a mean", fix=fix)
    if link == "identity" and not is_positive(prediction):
        node = prediction.producer()
        raise LossError(
            f"{loss} with link=identity needs a prediction that is always positive: the mean.",
            got=f"{prediction.name!r}, which {node.op_type if node is not None else 'nothing'} computes",
            key="loss.link",
            fix="Set {key}=log: the prediction is then the logarithm of the mean, which may be any number. Or end "
            "the model in Exp or Softplus.",
        )


def is_positive(value: ir.Value) -> bool:
    """Return whether the graph guarantees that a value is above 0, apart from rounding."""
    array = query.constant(value)
    if array is not None and not value.is_initializer():
        return bool((array > 0).all())
    node = value.producer()
    if node is None or node.domain:
        return False
    inputs = [x for x in node.inputs if x is not None]
    if node.op_type in SAME_SIGN:
        return is_positive(inputs[0])
    if node.op_type in ("Max", "Clip"):  # Clip's second input is its minimum
        return any(map(is_positive, inputs[:2] if node.op_type == "Clip" else inputs))
    if node.op_type == "Add":
        return any(is_positive(a) and (is_positive(b) or _not_negative(b)) for a, b in (inputs, inputs[::-1]))
    if node.op_type in ("Mul", "Div"):
        return all(map(is_positive, inputs))
    return node.op_type in POSITIVE_RESULT


def _not_negative(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in NOT_NEGATIVE_RESULT
