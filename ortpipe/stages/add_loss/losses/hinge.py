"""Hinge loss: l = max(0, 1 − s·z) of s = ±1; of several classes max(0, 1 + maxₖ≠ᵧ zₖ − zᵧ)."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.margins import MarginLoss, required, truth
from ortpipe.stages.add_loss.scores import Scores


@dataclass(frozen=True)
class Hinge(MarginLoss):
    """The loss of support vector machines on raw scores, `sklearn.metrics.hinge_loss`; for several labels, their sum.

    For several classes it is that of Crammer and Singer (2001). Its derivative at the kink, s·z = 1, is 0; if classes
    tie for the largest score, the first of them gets the gradient.
    """

    tasks = ("binary", "multiclass", "multilabel")

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return max(0, 1 − s·z) [N, E…, 1], or [N, E…, K] for K labels."""
        if scores.classes is None or scores.classes == 2:
            return super().__call__(op, label, scores)
        z, true_class = required(scores, "hinge"), truth(op, label, scores)
        with_margin = op.Add(z, op.Sub(1, true_class))  # zₖ + 1 of every other class
        largest, _ = op.TopK(with_margin, [1], axis=-1, outputs=2)
        return op.Sub(largest, op.ReduceSum(op.Mul(z, true_class), [-1], keepdims=1))

    def of_margin(self, op: Builder, margin: Value) -> Value:
        """Return max(0, 1 − s·z)."""
        return op.Relu(op.Sub(1, margin))
