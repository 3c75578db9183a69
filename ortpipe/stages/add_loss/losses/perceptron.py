"""Perceptron loss: l = max(0, −s·z) of s = ±1."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.margins import MarginLoss


@dataclass(frozen=True)
class Perceptron(MarginLoss):
    """How far a row is on the wrong side (Rosenblatt, 1958), as scikit-learn's Perceptron; 0 on the right side."""

    def of_margin(self, op: Builder, margin: Value) -> Value:
        """Return max(0, −s·z)."""
        return op.Relu(op.Neg(margin))
