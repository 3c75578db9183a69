"""Constant rate: ηₜ = η."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Constant:
    """The base rate at every step."""

    def __call__(self, lr: float, step: np.ndarray, losses: Sequence[float] = ()) -> np.ndarray:
        """Return η for every step."""
        return 0.0 * step + lr
