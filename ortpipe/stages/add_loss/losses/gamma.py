"""Gamma loss: l = Σₖ log μₖ + yₖ/μₖ, half the gamma deviance up to a constant."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.domains import POSITIVE, LinkFunction, check_link
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Gamma(LossConfig):
    """The loss of positive amounts whose spread grows with their mean, as scikit-learn's GammaRegressor.

    Attributes:
        link: `log`: the prediction is log μ, any number; `identity`: it is μ, which the graph must keep above 0.
    """

    link: LinkFunction = "log"
    labels = POSITIVE

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return ŷ + y·exp(−ŷ), or log ŷ + y/ŷ [N, E…, K]."""
        y = scores.prediction
        check_link(y, self.link, "gamma")
        if self.link == "log":
            return op.Add(y, op.Mul(label, op.Exp(op.Neg(y))))
        return op.Add(op.Log(y), op.Div(label, y))
