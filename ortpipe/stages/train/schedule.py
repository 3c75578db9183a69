"""What every schedule is: a function of the step, and a factor from the losses so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ortpipe.settings import Config


class Schedule(Config, ABC):
    """A config that gives learning rates when called; steps are counted from 1."""

    @abstractmethod
    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return the rate of each step, float64, from the base rate and the number of steps that training has."""

    def factor(self, monitored: Sequence[float]) -> float:
        """Return what the next epoch's rates are multiplied by, from what was watched so far (lower is better)."""
        return 1.0
