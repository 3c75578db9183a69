"""Cosine: ηₜ = ηₘᵢₙ + (η − ηₘᵢₙ)·(1 + cos(π·c/T))/2, c the steps since the last restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.checks import check_setting
from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Cosine(Schedule):
    """Cosine annealing (Loshchilov and Hutter, 2017), as PyTorch's `CosineAnnealingLR` and `…WarmRestarts`.

    Attributes:
        lowest: ηₘᵢₙ.
        period: T of the first cycle, in steps; null is one cycle over the whole training.
        growth: what each cycle's T is multiplied by for the next.
    """

    lowest: float = 0.0
    period: int | None = None
    growth: int = 1

    def __post_init__(self) -> None:
        check_setting("lowest", self.lowest, 0)
        check_setting("growth", self.growth, 1)
        if self.period is not None:
            check_setting("period", self.period, 1)

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return the rates."""
        import numpy as np

        done = step - 1.0
        length = np.full(done.shape, float(self.period or total))
        if self.period is not None and self.growth == 1:
            done = done % self.period
        elif self.period is not None:
            cycle = np.floor(np.log(1 + done * (self.growth - 1) / self.period) / np.log(self.growth) + 1e-12)
            done = done - self.period * (self.growth**cycle - 1) / (self.growth - 1)
            length = self.period * self.growth**cycle
        return self.lowest + (lr - self.lowest) * (1 + np.cos(np.pi * (done / length).clip(0, 1))) / 2
