"""Inverse scaling: ηₜ = η / tᵖ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.checks import check_setting
from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class InverseScaling(Schedule):
    """scikit-learn's `learning_rate='invscaling'` with `power_t`; t counts steps from 1."""

    power: float = 0.25

    def __post_init__(self) -> None:
        check_setting("power", self.power, 0)

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return η / tᵖ."""
        return lr / step.astype(float) ** self.power
