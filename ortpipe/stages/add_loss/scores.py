"""Scores of classes for losses: one logit of two classes, and the one-hot true class."""

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.errors import LossError
from ortpipe.graph.core.builder import Builder


class Scores(NamedTuple):
    """The values that a loss compares with the label, [N, E…, 1] class indices or [N, E…, K] values.

    `prediction` [N, E…, K] holds values or probabilities of a row's elements E…, such as steps or pixels (none:
    [N, K]); `logits` have that shape, too (K = 1 for two classes), and are None if the graph has none; `classes` is the
    number of classes, None for a regression; `opposite` logits are a pair [−s, s] whose logit is s.
    """

    prediction: ir.Value
    logits: ir.Value | None
    classes: int | None
    opposite: bool = False
    inputs: tuple[ir.Value, ...] = ()

    @property
    def dtype(self) -> ir.DataType:
        """The prediction's type."""
        assert self.prediction.dtype is not None
        return self.prediction.dtype

    @property
    def sizes(self) -> list[Any]:
        """The prediction's sizes N, E…, K, each a number, a name or None; an unnamed N is named so."""
        assert self.prediction.shape is not None
        sizes = [d if isinstance(d, int) else d.value for d in self.prediction.shape]
        rows, *inner = [None if str(d).startswith("unk__") else d for d in sizes]  # a name from shape inference
        return ["N" if rows is None else rows, *inner]


def required(scores: Scores, loss: str) -> ir.Value:
    """Return the raw scores; raise LossError if the graph has none."""
    if scores.logits is None:
        raise LossError(
            f"{loss} needs raw scores.",
            got=f"{scores.prediction.name!r}, probabilities for which the graph computes no raw scores",
            fix="Choose add_loss=log, cross_entropy or focal, which read probabilities, too. If the output holds raw "
            "scores, set {@convert.source.scores}=logits.",
        )
    return scores.logits


def logit(op: Builder, scores: Scores, loss: str) -> ir.Value:
    """Return the logit z [N, E…, 1]: of two columns z₁ − z₀, or half that if they are opposite; one column as it is."""
    return one_column(op, required(scores, loss), (-0.5, 0.5) if scores.opposite else (-1, 1), scores)


def margin(op: Builder, label: ir.Value, scores: Scores, loss: str) -> Any:
    """Return s·z for labels 0 or 1: the logit z, or −z if the label is 0."""
    z = logit(op, scores, loss)
    return op.Mul(z, op.Sub(op.Mul(op.cast(label, z), 2), 1))


def one_column(op: Builder, value: ir.Value, weights: tuple[float, float], scores: Scores) -> ir.Value:
    """Return the weighted sum of two classes' columns (by MatMul, which has a gradient in every float type)."""
    if not two_columns(value, scores):
        return value
    return op.MatMul(value, op.const(np.array(weights, scores.dtype.numpy()).reshape(2, 1)))


def two_columns(value: ir.Value, scores: Scores) -> bool:
    """Return whether a value has one column for each of two classes."""
    return scores.classes == 2 and value.shape is not None and value.shape[-1] == 2


def truth(op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
    """Return the one-hot 1[k = y] [N, E…, K] of class indices [N, E…, 1], in the prediction's type."""
    assert scores.classes is not None
    return op.cast(op.Equal(label, op.const(np.arange(scores.classes))), scores.prediction)


def log_sigmoid_input(value: ir.Value) -> ir.Value | None:
    """Return z if the value is log σ(z), in convert's form (z − |z|)·½ − log(exp(−|z|) + 1), else None."""
    scaled, tail = _inputs(value, "Sub") or (None, None)
    difference = (_inputs(scaled, "Mul") or [None])[0]
    z, size = _inputs(difference, "Sub") or (None, None)
    exp = (_inputs((_inputs(tail, "Log") or [None])[0], "Add") or [None])[0]
    negative = (_inputs((_inputs(exp, "Exp") or [None])[0], "Neg") or [None])[0]
    abs_inputs = _inputs(size, "Abs")
    return z if size is not None and size is negative and abs_inputs is not None and abs_inputs[0] is z else None


def _inputs(value: ir.Value | None, op_type: str) -> list[ir.Value | None] | None:
    node = value.producer() if value is not None else None
    return list(node.inputs) if node is not None and node.op_type == op_type and not node.domain else None
