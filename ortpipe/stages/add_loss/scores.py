"""What losses of classes read of scores: one logit of two classes, and which class is the true one."""

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.errors import LossError
from ortpipe.graph.builder import Builder


class Scores(NamedTuple):
    """What a loss compares the label with: [N, E…, 1] of class indices, or [N, E…, K] of values.

    `prediction` [N, E…, K] holds values or probabilities of a row's elements E…, such as steps or pixels (none: it is
    [N, K]); `logits` likewise (K = 1 for two classes) is None where the graph has none; `classes` is their number,
    None for a regression; `opposite` logits are a pair [−s, s] of which s is the logit.
    """

    prediction: ir.Value
    logits: ir.Value | None
    classes: int | None
    opposite: bool = False
    inputs: tuple[ir.Value, ...] = ()


def required(scores: Scores, loss: str) -> ir.Value:
    """Return the raw scores; refuse a graph that has none."""
    if scores.logits is None:
        raise LossError(
            f"{loss} reads raw scores.",
            got=f"{scores.prediction.name!r}, probabilities in front of which the graph has none",
            fix="Choose add_loss=log, cross_entropy or focal, which read probabilities too; where these are raw "
            "scores, set convert.source.scores=logits.",
        )
    return scores.logits


def logit(op: Builder, scores: Scores, loss: str) -> ir.Value:
    """Return z = z₁ − z₀ of two columns of raw scores [N, E…, 1], half that where they are opposite; else as it is."""
    return one_column(op, required(scores, loss), (-0.5, 0.5) if scores.opposite else (-1, 1), scores)


def margin(op: Builder, label: ir.Value, scores: Scores, loss: str) -> Any:
    """Return s·z of a label 0 or 1: the logit z, or −z where the label is 0."""
    z = logit(op, scores, loss)
    return op.Mul(z, op.Sub(op.Mul(op.cast(label, z), 2), 1))


def one_column(op: Builder, value: ir.Value, weights: tuple[float, float], scores: Scores) -> ir.Value:
    """Return both classes' columns joined in one, weighted (a MatMul: it has a gradient in every float type)."""
    if not two_columns(value, scores):
        return value
    assert scores.prediction.dtype is not None
    return op.MatMul(value, op.const(np.array(weights, scores.prediction.dtype.numpy()).reshape(2, 1)))


def two_columns(value: ir.Value, scores: Scores) -> bool:
    """Return whether each of two classes has a column."""
    return scores.classes == 2 and value.shape is not None and value.shape[-1] == 2


def truth(op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
    """Return 1[k = y] [N, E…, K] of class indices [N, E…, 1], in the prediction's type."""
    assert scores.classes is not None
    return op.cast(op.Equal(label, op.const(np.arange(scores.classes))), scores.prediction)


def behind_log_sigmoid(value: ir.Value) -> ir.Value | None:
    """Return z of log σ(z) where it is written as (z − |z|)·½ − log(exp(−|z|) + 1), as convert writes it."""
    halves, tail = _inputs(value, "Sub") or (None, None)
    difference = (_inputs(halves, "Mul") or [None])[0]
    z, size = _inputs(difference, "Sub") or (None, None)
    exp = (_inputs((_inputs(tail, "Log") or [None])[0], "Add") or [None])[0]
    negative = (_inputs((_inputs(exp, "Exp") or [None])[0], "Neg") or [None])[0]
    of_size = _inputs(size, "Abs")
    return z if size is not None and size is negative and of_size is not None and of_size[0] is z else None


def _inputs(value: ir.Value | None, op_type: str) -> list[ir.Value | None] | None:
    node = value.producer() if value is not None else None
    return list(node.inputs) if node is not None and node.op_type == op_type and not node.domain else None
