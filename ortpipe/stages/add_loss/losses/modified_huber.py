"""Modified Huber loss: l = max(0, 1 − s·z)² for s·z ≥ −1, else −4·s·z, of s = ±1."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.margins import MarginLoss


@dataclass(frozen=True)
class ModifiedHuber(MarginLoss):
    """The squared hinge loss, linear for s·z < −1 (Zhang, 2004), as scikit-learn's SGDClassifier.

    Smooth at s·z = 1 and at s·z = −1.
    """

    def of_margin(self, op: Builder, margin: Value) -> Value:
        """Return c·(2·r − c) of r = max(0, 1 − s·z) and c = min(r, 2)."""
        missing = op.Relu(op.Sub(1, margin))
        near = op.Min(missing, 2)
        return op.Mul(near, op.Sub(op.Mul(missing, 2), near))
