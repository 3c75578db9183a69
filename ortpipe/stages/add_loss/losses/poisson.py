"""Poisson loss: l = Σₖ μₖ − yₖ·log μₖ, half the Poisson deviance up to a constant."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.domains import NOT_NEGATIVE, LinkFunction, check_link
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Poisson(LossConfig):
    """The loss of counts y ≥ 0, as `torch.nn.PoissonNLLLoss` and scikit-learn's PoissonRegressor.

    Attributes:
        link: `log`: the prediction is log μ, any number; `identity`: it is μ, which the graph must keep above 0.
    """

    link: LinkFunction = "log"
    labels = NOT_NEGATIVE

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return exp(ŷ) − y·ŷ, or ŷ − y·log ŷ [N, E…, K]."""
        y = scores.prediction
        check_link(y, self.link, "poisson")
        if self.link == "log":
            return op.Sub(op.Exp(y), op.Mul(label, y))
        return op.Sub(y, op.Mul(label, op.Log(y)))
