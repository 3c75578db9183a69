"""The labels and predictions that a loss is defined for; of counts and amounts, a mean above 0 or its logarithm."""

import functools
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortpipe.data.labels import wrong_labels
from ortpipe.data.rows import Data
from ortpipe.errors import LossError
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having
from ortpipe.settings import Must

# log: the prediction is log μ, any number; identity: it is μ, which must be positive
LinkFunction = Literal["log", "identity"]
POSITIVE_RESULT, NOT_NEGATIVE_RESULT = having("positive"), having("not_negative")
SAME_SIGN = having("moves", "view")
# bounds of label arrays
NOT_NEGATIVE = Must("not negative", lambda y: y >= 0)
POSITIVE = Must("positive", lambda y: y > 0)
NUMBER = Must("whole numbers from 0 to 2²⁴, which float32 holds", lambda y: (y >= 0) & (y <= 2**24) & (y % 1 == 0))
ZERO_OR_ONE = Must("0 or 1", lambda y: (y == 0) | (y == 1))


def check_labels(bound: Must, loss: str, data: Data, padding: int | float | str | None = None) -> None:
    """Raise LossError for labels that a loss is not defined for, naming the first rows."""
    if wrong := wrong_labels(data, functools.partial(_outside, bound=bound, padding=padding)):
        rule = f"The loss {loss} is defined for labels that are {bound.words}."
        raise LossError(rule, got=wrong, fix="Correct these rows or leave them out, or choose another loss.")


def check_pairs(data: Data) -> None:
    """Raise LossError if all training rows have the same label: none is a negative example of another."""
    numbers = {number for label, _ in data.train.read_labels() for number in np.unique(label)[:2].tolist()}
    if len(numbers) < 2:
        rule = "The loss info_nce needs training rows with different labels: a row's negative examples."
        fix = "Label each row with the number of its pair: 0, 1, 2, …"
        raise LossError(rule, got=f"{len(data.train)} rows with the label {', '.join(map(str, numbers))}", fix=fix)


def _outside(label: np.ndarray, bound: Must, padding: int | float | str | None) -> np.ndarray:
    """Return the indices of rows with labels out of bounds; none if labels are strings."""
    if label.dtype.kind not in "biuf":
        return np.zeros(0, np.int64)
    fits = (np.asarray(bound.holds(label)) | (label == padding)).reshape(len(label), -1).all(axis=1)
    return np.flatnonzero(~fits)


def check_link(prediction: ir.Value, link: LinkFunction, loss: str) -> None:
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
