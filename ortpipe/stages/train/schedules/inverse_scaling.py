"""Inverse scaling: ηₜ = η / tᵖ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class InverseScaling:
    """scikit-learn's `learning_rate='invscaling'` with `power_t`; t counts steps from 1."""

    power: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.power < float("inf"):
            raise ConfigError(
                "train.schedule.power is finite and not negative.", got=self.power, fix="Set train.schedule.power=0.25."
            )

    def __call__(self, lr: float, step: np.ndarray, losses: Sequence[float] = ()) -> np.ndarray:
        """Return η / tᵖ."""
        return lr / step.astype(float) ** self.power
