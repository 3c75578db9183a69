"""Tweedie loss: l = Σₖ μₖ²⁻ᵖ/(2 − p) − yₖ·μₖ¹⁻ᵖ/(1 − p), half the deviance up to a constant."""

from dataclasses import dataclass

from ortpipe.errors import ConfigError
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Must
from ortpipe.stages.add_loss.domains import NOT_NEGATIVE, POSITIVE, LinkFunction, check_link
from ortpipe.stages.add_loss.losses.gamma import Gamma
from ortpipe.stages.add_loss.losses.poisson import Poisson
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Tweedie(LossConfig):
    """The loss of a variance μᵖ, as scikit-learn's TweedieRegressor: amounts that are often 0 for 1 < p < 2.

    Attributes:
        power: p: 0 is the squared error, 1 Poisson, 2 gamma, 3 inverse Gaussian; values between 0 and 1 do not exist.
        link: `log`: the prediction is log μ, any number; `identity`: it is μ, which the graph must keep above 0.
    """

    power: float = 1.5
    link: LinkFunction = "log"

    def __post_init__(self) -> None:
        if not -10 <= self.power <= 10 or 0 < self.power < 1:
            rule, fix = "{key} must be from −10 to 0 or from 1 to 10.", "Set {key}=1.5, for example."
            raise ConfigError(rule, key="power", got=self.power, fix=fix)

    @property
    def labels(self) -> Must | None:
        """The bound of labels: none for p ≤ 0, not negative for p < 2, positive for p ≥ 2."""
        return None if self.power <= 0 else NOT_NEGATIVE if self.power < 2 else POSITIVE

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return exp((2 − p)·ŷ)/(2 − p) − y·exp((1 − p)·ŷ)/(1 − p), or the same of μ = ŷ [N, E…, K]."""
        if self.power in (1, 2):  # the limits of both fractions
            return (Poisson if self.power == 1 else Gamma)(self.link)(op, label, scores)
        y, a, b = scores.prediction, 2 - self.power, 1 - self.power
        check_link(y, self.link, "tweedie")
        if self.link == "log":
            first, second = op.Exp(op.Mul(y, a)), op.Exp(op.Mul(y, b))
        else:
            first, second = op.Pow(y, a), op.Pow(y, b)
        return op.Sub(op.Div(first, a), op.Mul(label, op.Div(second, b)))
