"""Cosine: ηₜ = ηₘᵢₙ + (η − ηₘᵢₙ)·(1 + cos(π·c/T))/2, c the steps since the last restart."""

from dataclasses import dataclass

import numpy as np

from ortpipe.settings import Count, NotNegative
from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class Cosine(Schedule):
    """Cosine annealing (Loshchilov and Hutter, 2017), as PyTorch's `CosineAnnealingLR` and `…WarmRestarts`.

    Attributes:
        lowest: ηₘᵢₙ.
        period: T of the first cycle, in steps; null is one cycle over the whole training.
        growth: the factor by which each cycle is longer than the previous one.
    """

    lowest: NotNegative = 0.0
    period: Count | None = None
    growth: Count = 1

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        done = step - 1.0
        length = np.full(done.shape, float(self.period or total))
        if self.period is not None and self.growth == 1:
            done = done % self.period
        elif self.period is not None:
            cycle = np.floor(np.log(1 + done * (self.growth - 1) / self.period) / np.log(self.growth) + 1e-12)
            done = done - self.period * (self.growth**cycle - 1) / (self.growth - 1)
            length = self.period * self.growth**cycle
        return self.lowest + (lr - self.lowest) * (1 + np.cos(np.pi * (done / length).clip(0, 1))) / 2
