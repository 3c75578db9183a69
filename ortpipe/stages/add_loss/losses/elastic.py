"""Elastic error: l = Σₖ l1_weight·|ŷₖ − yₖ| + l2_weight·(ŷₖ − yₖ)²."""

from dataclasses import dataclass

from ortpipe.errors import ConfigError
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import NotNegative
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Elastic(LossConfig):
    """A weighted sum of absolute and squared error.

    Attributes:
        l1_weight: the weight of the absolute error.
        l2_weight: the weight of the squared error.
    """

    l1_weight: NotNegative = 0.5
    l2_weight: NotNegative = 0.5

    def __post_init__(self) -> None:
        if self.l1_weight + self.l2_weight == 0:
            rule, fix = "One of {at}l1_weight and {at}l2_weight must be positive.", "Set both to 0.5, for example."
            raise ConfigError(rule, key="l1_weight", got="0 and 0", fix=fix)

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return l1_weight·|ŷ − y| + l2_weight·(ŷ − y)² [N, K]."""
        difference = op.Sub(scores.prediction, label)
        absolute = op.Mul(op.Abs(difference), self.l1_weight)
        return op.Add(absolute, op.Mul(op.Mul(difference, difference), self.l2_weight))
