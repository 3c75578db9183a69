"""Steps: ηₜ = η·γ^⌊(t − 1)/s⌋."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.checks import check_setting
from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Step(Schedule):
    """A fall by γ every s steps, as `torch.optim.lr_scheduler.StepLR`."""

    every: int = 1000
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_setting("every", self.every, 1)
        check_setting("gamma", self.gamma, 0)

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return η·γ^⌊(t − 1)/s⌋."""
        return lr * self.gamma ** ((step - 1) // self.every).astype(float)
