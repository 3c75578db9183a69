"""Polynomial: ηₜ = η·(1 − (t − 1)/T)ᵖ, T = all steps."""

from dataclasses import dataclass

from ortpipe.settings import NotNegative
from ortpipe.stages.train.schedules import Schedule, Steps


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Decay to 0 at the end of training, linear for p = 1, as `torch.optim.lr_scheduler.PolynomialLR`.

    Attributes:
        power: p, the exponent of the fraction of remaining steps.
    """

    power: NotNegative = 1.0

    def __call__(self, lr: float, step: Steps, total: int) -> Steps:
        return lr * (1 - (step - 1) / total).clip(0) ** self.power
