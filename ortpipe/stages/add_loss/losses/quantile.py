"""Quantile (pinball) loss: l = Σₖ max(q·d, (q − 1)·d) of d = yₖ − ŷₖ."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt

from ortpipe.stages.add_loss.scores import Builder, LossConfig, Scores, Value


@dataclass(frozen=True)
class Quantile(LossConfig):
    """The loss whose best constant is the quantile q (Koenker and Bassett, 1978), `mean_pinball_loss` of scikit-learn.

    Its derivative by ŷ is −q below the label, 1 − q above it, and their mean at it.

    Attributes:
        quantile: q, the quantile to predict: 0.5 is the median.
    """

    quantile: Annotated[float, Gt(0), Lt(1)] = 0.5

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return ½·|d| + (q − ½)·d [N, E…, K]."""
        difference = op.Sub(label, scores.prediction)
        return op.Add(op.Mul(op.Abs(difference), 0.5), op.Mul(difference, self.quantile - 0.5))
