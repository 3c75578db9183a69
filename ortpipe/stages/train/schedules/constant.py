"""Constant rate: ηₜ = η."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortpipe.stages.train.schedule import Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """The base rate at every step."""

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return η for every step."""
        return 0.0 * step + lr
