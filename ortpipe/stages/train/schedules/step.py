"""Steps: ηₜ = η·γ^⌊(t − 1)/s⌋."""

from dataclasses import dataclass

from ortpipe.settings import Count, NotNegative
from ortpipe.stages.train.schedules import Schedule, Steps


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Decay by γ every s steps, as `torch.optim.lr_scheduler.StepLR`.

    Attributes:
        every: s, the steps between two reductions.
        gamma: γ, the factor of the rate per reduction.
    """

    every: Count = 1000
    gamma: NotNegative = 0.1

    def __call__(self, lr: float, step: Steps, total: int) -> Steps:
        return lr * self.gamma ** ((step - 1) // self.every).astype(float)
