"""Huber loss: l = Σₖ ½·d² for |d| ≤ δ, else δ·(|d| − ½·δ), of d = ŷₖ − yₖ."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Positive
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Huber(LossConfig):
    """Squared error near 0, absolute error far away (Huber, 1964), as `torch.nn.HuberLoss` and `scipy.special.huber`.

    Its derivative at |d| = δ is ±δ from both sides.

    Attributes:
        delta: δ, where the squared error becomes the absolute one.
    """

    delta: Positive = 1.0

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return m·(|d| − ½·m) [N, E…, K] of m = min(|d|, δ)."""
        size = op.Abs(op.Sub(scores.prediction, label))
        near = op.Min(size, self.delta)
        return op.Mul(near, op.Sub(size, op.Mul(near, 0.5)))
