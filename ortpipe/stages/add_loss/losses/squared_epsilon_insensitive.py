"""Squared ε-insensitive error: l = Σₖ max(0, |ŷₖ − yₖ| − ε)²."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import NotNegative
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class SquaredInsensitive(LossConfig):
    """The square of the ε-insensitive error, as scikit-learn's SGDRegressor and LinearSVR; smooth at |d| = ε.

    Attributes:
        epsilon: ε, up to which an error costs nothing.
    """

    epsilon: NotNegative = 0.1

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return max(0, |ŷ − y| − ε)² [N, E…, K]."""
        beyond = op.Relu(op.Sub(op.Abs(op.Sub(scores.prediction, label)), self.epsilon))
        return op.Mul(beyond, beyond)
