"""Log loss of two classes: l = −y·log(p) − (1 − y)·log(1 − p)."""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt, Lt

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Share
from ortpipe.stages.add_loss.margins import one_column, two_columns
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Log(LossConfig):
    """Log loss, `sklearn.metrics.log_loss` for two classes; for several labels, their sum.

    From logits z it is max(z, 0) − z·y + log(1 + exp(−|z|)), finite for any z, where z is z₁ − z₀ for two columns, and
    half of that if they are opposite; from probabilities, p is clipped to [eps, 1 − eps] first, and two columns are
    then divided by their sum.

    Attributes:
        eps: clips probabilities if the graph has no logits.
        smoothing: ε of labels y·(1 − ε) + ½·ε, as Keras' `BinaryCrossentropy(label_smoothing=ε)`.
    """

    eps: Annotated[float, Gt(0), Lt(0.5)] = 1e-6
    smoothing: Share = 0.0
    tasks = ("binary", "multilabel")
    reads_shares = True

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the loss [N, 1], or [N, K] for K labels."""
        z, p = scores.logits, scores.prediction
        y: Any = one_column(op, op.cast(label, p), (0, 1), scores)  # of shares, that of the second class
        with op.formulas():
            if self.smoothing:
                y = y * (1 - self.smoothing) + self.smoothing / 2
            if z is not None:
                z = one_column(op, z, (-0.5, 0.5) if scores.opposite else (-1, 1), scores)
                size = op.Abs(z)
                # the first term is max(z, 0), but its derivative at 0 is ½
                return (z + size) * 0.5 - z * y + op.Log(op.Exp(op.Neg(size)) + 1)
            p1 = op.Clip(one_column(op, p, (0, 1), scores), self.eps, 1 - self.eps)
            if not two_columns(p, scores):
                return op.Neg(y * op.Log(p1) + (1 - y) * op.Log(1 - p1))
            p0 = op.Clip(one_column(op, p, (1, 0), scores), self.eps, 1 - self.eps)
            return op.Log(p0 + p1) - (y * op.Log(p1) + (1 - y) * op.Log(p0))
