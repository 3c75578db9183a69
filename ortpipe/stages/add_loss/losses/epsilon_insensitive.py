"""ε-insensitive error: l = Σₖ max(0, |ŷₖ − yₖ| − ε)."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import NotNegative
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class EpsilonInsensitive(LossConfig):
    """The error of support vector regression (Vapnik, 1995), as scikit-learn's SGDRegressor and LinearSVR.

    Its derivative at |d| = ε is 0, as in scikit-learn.

    Attributes:
        epsilon: ε, up to which an error costs nothing.
    """

    epsilon: NotNegative = 0.1

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return max(0, |ŷ − y| − ε) [N, E…, K]."""
        return op.Relu(op.Sub(op.Abs(op.Sub(scores.prediction, label)), self.epsilon))
