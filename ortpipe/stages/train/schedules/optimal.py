"""Optimal: ηₜ = 1 / (α·(t₀ + t − 1))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.checks import check_setting
from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Optimal(Schedule):
    """scikit-learn's `SGDClassifier(learning_rate='optimal')` (Bottou): the base rate plays no part.

    t₀ = 1/(α·w), w = α^(−¼), a typical weight; a loss whose slope at −w is above 1 does not occur here.
    """

    alpha: float = 0.0001

    def __post_init__(self) -> None:
        check_setting("alpha", self.alpha, 1e-300)

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return 1 / (α·(t₀ + t − 1))."""
        typical = self.alpha**-0.25
        return 1 / (self.alpha * (1 / (typical * self.alpha) + step - 1))
