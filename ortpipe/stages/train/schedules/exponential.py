"""Exponential: ηₜ = η·γ^(t − 1)."""

from dataclasses import dataclass

from ortpipe.settings import NotNegative
from ortpipe.stages.train.schedules import Schedule, Steps


@dataclass(frozen=True)
class Exponential(Schedule):
    """Decay by γ every step, as `torch.optim.lr_scheduler.ExponentialLR`.

    Attributes:
        gamma: γ, the factor of the rate per step.
    """

    gamma: NotNegative = 0.999

    def __call__(self, lr: float, step: Steps, total: int) -> Steps:
        return lr * self.gamma ** (step - 1.0)
