"""Absolute error: l = Σₖ |ŷₖ − yₖ|."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class L1(LossConfig):
    """Absolute error, `sklearn.metrics.mean_absolute_error` for one output; its derivative at 0 is 0."""

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return |ŷ − y| [N, K]."""
        return op.Abs(op.Sub(scores.prediction, label))
