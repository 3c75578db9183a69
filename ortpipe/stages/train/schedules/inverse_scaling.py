"""Inverse scaling: ηₜ = η / tᵖ."""

from dataclasses import dataclass

import numpy as np

from ortpipe.settings import NotNegative
from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class InverseScaling(Schedule):
    """scikit-learn's `learning_rate='invscaling'` with `power_t`; t counts steps from 1.

    Attributes:
        power: p, the exponent of the step number.
    """

    power: NotNegative = 0.25

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        return lr / step.astype(float) ** self.power
