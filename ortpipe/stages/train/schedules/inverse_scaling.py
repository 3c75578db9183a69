"""Inverse scaling: ηₜ = η / tᵖ."""

from dataclasses import dataclass

from ortpipe.settings import NotNegative
from ortpipe.stages.train.schedules import Schedule, Steps


@dataclass(frozen=True)
class InverseScaling(Schedule):
    """scikit-learn's `learning_rate='invscaling'` with `power_t`; t counts steps from 1.

    Attributes:
        power: p, the exponent of the step number.
    """

    power: NotNegative = 0.25

    def __call__(self, lr: float, step: Steps, total: int) -> Steps:
        return lr / step.astype(float) ** self.power
