"""Adaptive rate: ηₜ = η / 5ᵏ, where k counts how often the training loss stopped falling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

LOWEST = 1e-6  # a rate at or below it stays


@dataclass(frozen=True)
class Adaptive:
    """scikit-learn's `learning_rate='adaptive'`: five times slower after every `patience` epochs without progress.

    Attributes:
        patience: epochs in a row whose loss is not lower than the best so far by `tol` (`n_iter_no_change`).
        tol: what counts as lower, per row.
    """

    patience: int = 5
    tol: float = 1e-3

    def __post_init__(self) -> None:
        if self.patience < 1 or not 0 <= self.tol < float("inf"):
            raise ConfigError(
                "train.schedule.patience is at least 1, and tol is finite and not negative.",
                got=f"patience={self.patience}, tol={self.tol}",
                fix="Set them to 5 and 0.001.",
            )

    def __call__(self, lr: float, step: np.ndarray, losses: Sequence[float] = ()) -> np.ndarray:
        """Return η / 5ᵏ for every step."""
        best, waited = float("inf"), 0
        for loss in losses:
            waited = waited + 1 if loss > best - self.tol else 0
            best = min(best, loss)
            if waited >= self.patience and lr > LOWEST:
                lr, waited = lr / 5, 0
        return 0.0 * step + lr
