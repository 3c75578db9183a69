"""One logit of two classes, the one-hot true class, raw scores that a loss needs, and losses of a margin."""

from typing import ClassVar

import numpy as np

from ortpipe.errors import LossError
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.domains import ZERO_OR_ONE
from ortpipe.stages.add_loss.scores import LossConfig, Scores


def required(scores: Scores, loss: str) -> Value:
    """Return the raw scores; raise LossError if the graph has none."""
    if scores.logits is None:
        raise LossError(
            f"{loss} needs raw scores.",
            got=f"{scores.prediction.name!r}, probabilities for which the graph computes no raw scores",
            fix="Choose add_loss=log, cross_entropy or focal, which read probabilities, too. If the output holds raw "
            "scores, set {@convert.source.scores}=logits.",
        )
    return scores.logits


def truth(op: Builder, label: Value, scores: Scores) -> Value:
    """Return the one-hot 1[k = y] [N, E…, K] of class indices [N, E…, 1], in the prediction's type; or soft labels."""
    assert scores.classes is not None
    if label.shape is not None and label.shape[-1] == scores.classes > 1:
        return label
    return op.cast(op.Equal(label, op.const(np.arange(scores.classes))), scores.prediction)


def logit(op: Builder, scores: Scores, loss: str) -> Value:
    """Return the logit z [N, E…, 1]: of two columns z₁ − z₀, or half that if they are opposite; one column as it is."""
    return one_column(op, required(scores, loss), (-0.5, 0.5) if scores.opposite else (-1, 1), scores)


class MarginLoss(LossConfig):
    """A loss of the margin s·z: the logit z of two classes, or of each of several labels, times s = ±1 for a label."""

    tasks: ClassVar[tuple[str, ...]] = ("binary", "multilabel")
    labels = ZERO_OR_ONE  # of several labels

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the terms [N, E…, 1], or [N, E…, K] for K labels."""
        z = logit(op, scores, type(self).__module__.rpartition(".")[2])
        return self.of_margin(op, op.Mul(z, op.Sub(op.Mul(op.cast(label, z), 2), 1)))

    def of_margin(self, op: Builder, margin: Value) -> Value:
        """Return the terms of the margins."""
        raise NotImplementedError


def one_column(op: Builder, value: Value, weights: tuple[float, float], scores: Scores) -> Value:
    """Return the weighted sum of two classes' columns (by MatMul, which has a gradient in every float type)."""
    if not two_columns(value, scores):
        return value
    return op.MatMul(value, op.const(np.array(weights, scores.dtype.numpy()).reshape(2, 1)))


def two_columns(value: Value, scores: Scores) -> bool:
    """Return whether a value has one column for each of two classes."""
    return scores.classes == 2 and value.shape is not None and value.shape[-1] == 2


def log_sigmoid_input(value: Value) -> Value | None:
    """Return z if the value is log σ(z), in convert's form (z − |z|)·½ − log(exp(−|z|) + 1), else None."""
    scaled, tail = _inputs(value, "Sub") or (None, None)
    difference = (_inputs(scaled, "Mul") or [None])[0]
    z, size = _inputs(difference, "Sub") or (None, None)
    exp = (_inputs((_inputs(tail, "Log") or [None])[0], "Add") or [None])[0]
    negative = (_inputs((_inputs(exp, "Exp") or [None])[0], "Neg") or [None])[0]
    abs_inputs = _inputs(size, "Abs")
    return z if size is not None and size is negative and abs_inputs is not None and abs_inputs[0] is z else None


def _inputs(value: Value | None, op_type: str) -> list[Value | None] | None:
    node = value.producer() if value is not None else None
    return list(node.inputs) if node is not None and node.op_type == op_type and not node.domain else None
