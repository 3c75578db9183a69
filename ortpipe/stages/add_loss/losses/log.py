"""Log loss of two classes: l = −y·log(p) − (1 − y)·log(1 − p)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import onnx_ir as ir
from annotated_types import Gt, Lt

from ortpipe.graph.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.losses import Scores


@dataclass(frozen=True)
class Log(Config):
    """Log loss, `sklearn.metrics.log_loss` for two classes; of several labels, their sum.

    From logits z it is max(z, 0) − z·y + log(1 + exp(−|z|)), finite for any z, where z is z₁ − z₀ of two columns and
    half of that where they are opposite; from probabilities, p is clipped to [eps, 1 − eps] first, and two columns are
    then divided by their sum.
    """

    eps: Annotated[float, Gt(0), Lt(0.5)] = 1e-6
    tasks: ClassVar[tuple[str, ...]] = ("binary", "multilabel")

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return the loss [N, 1], or [N, K] for K labels."""
        z, p = scores.logits, scores.prediction
        y: Any = op.cast(label, p)
        with op.formulas():
            if z is not None:
                z = _one_column(op, z, (-0.5, 0.5) if scores.opposite else (-1, 1), scores)
                size = op.Abs(z)
                # the first term is max(z, 0), but its derivative at 0 is ½
                return (z + size) * 0.5 - z * y + op.Log(op.Exp(op.Neg(size)) + 1)
            p1 = op.Clip(_one_column(op, p, (0, 1), scores), self.eps, 1 - self.eps)
            if not _two_columns(p, scores):
                return op.Neg(y * op.Log(p1) + (1 - y) * op.Log(1 - p1))
            p0 = op.Clip(_one_column(op, p, (1, 0), scores), self.eps, 1 - self.eps)
            return op.Log(p0 + p1) - (y * op.Log(p1) + (1 - y) * op.Log(p0))


def _two_columns(value: ir.Value, scores: Scores) -> bool:
    return scores.classes == 2 and value.shape is not None and value.shape[-1] == 2


def _one_column(op: Builder, value: ir.Value, weights: tuple[float, float], scores: Scores) -> ir.Value:
    """Return both classes' columns joined in one, weighted (a MatMul: it has a gradient in every float type)."""
    if not _two_columns(value, scores):
        return value
    assert scores.prediction.dtype is not None
    return op.MatMul(value, op.const(np.array(weights, scores.prediction.dtype.numpy()).reshape(2, 1)))
