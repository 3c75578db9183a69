"""Constant rate: ηₜ = η."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Constant(Schedule):
    """The base rate at every step."""

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return η for every step."""
        return 0.0 * step + lr
