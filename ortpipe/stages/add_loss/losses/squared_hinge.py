"""Squared hinge loss: l = max(0, 1 − s·z)² of s = ±1."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.margins import MarginLoss


@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    """The square of the hinge loss, as scikit-learn's SGDClassifier and LinearSVC; smooth at s·z = 1."""

    def of_margin(self, op: Builder, margin: Value) -> Value:
        """Return max(0, 1 − s·z)²."""
        missing = op.Relu(op.Sub(1, margin))
        return op.Mul(missing, missing)
