"""Optimal: ηₜ = η·t₀ / (t₀ + t − 1), t₀ = α^(−3/4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.checks import check_setting
from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Optimal(Schedule):
    """Bottou's 1 / (α·(t₀ + t − 1)), scaled to start at η.

    With η = α^(−1/4) it is the `learning_rate='optimal'` of scikit-learn's `SGDRegressor` and `SGDClassifier`, where α
    is the strength of the penalty.
    """

    alpha: float = 0.0001

    def __post_init__(self) -> None:
        check_setting("alpha", self.alpha, 1e-300)

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return η·t₀ / (t₀ + t − 1)."""
        first = self.alpha**-0.75
        return lr * first / (first + step - 1)
