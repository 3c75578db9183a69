"""Squared error: l = Σₖ (ŷₖ − yₖ)²."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class L2(LossConfig):
    """Squared error (no factor ½), `sklearn.metrics.mean_squared_error` for one output."""

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return (ŷ − y)² [N, K]."""
        difference = op.Sub(scores.prediction, label)
        return op.Mul(difference, difference)
