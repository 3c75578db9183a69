"""Exponential: ηₜ = η·γ^(t − 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.checks import check_setting
from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Exponential(Schedule):
    """A fall by γ every step, as `torch.optim.lr_scheduler.ExponentialLR`."""

    gamma: float = 0.999

    def __post_init__(self) -> None:
        check_setting("gamma", self.gamma, 0)

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return η·γ^(t − 1)."""
        return lr * self.gamma ** (step - 1.0)
