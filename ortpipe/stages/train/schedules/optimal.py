"""Optimal schedule: ηₜ = η · t₀ / (t₀ + t − 1), with t₀ = α^(−3/4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Optimal:
    """Bottou's 1 / (α·(t₀ + t − 1)), scaled to start at η.

    With η = α^(−1/4) it is the `learning_rate='optimal'` of scikit-learn's `SGDRegressor` and `SGDClassifier`, where α
    is the strength of the penalty; t counts from 1.
    """

    alpha: float = 0.0001

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise ConfigError(
                "train.schedule.alpha is positive and finite.", got=self.alpha, fix="Set train.schedule.alpha=0.0001."
            )

    def __call__(self, lr: float, step: np.ndarray, losses: Sequence[float] = ()) -> np.ndarray:
        """Return η · t₀ / (t₀ + t − 1)."""
        first = self.alpha**-0.75
        return lr * first / (first + step - 1)
