"""Squared margin: l = (1 − s·z)² = (z − s)² of s = ±1."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.margins import MarginLoss


@dataclass(frozen=True)
class SquaredMargin(MarginLoss):
    """Squared error of raw scores and labels ±1, as scikit-learn's RidgeClassifier; s·z > 1 costs, too."""

    def of_margin(self, op: Builder, margin: Value) -> Value:
        """Return (1 − s·z)²."""
        missing = op.Sub(1, margin)
        return op.Mul(missing, missing)
