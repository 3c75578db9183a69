"""The catalogue of schedules: each is a frozen dataclass that is called for the rates of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ortpipe.stages.train.schedules.adaptive import Adaptive
from ortpipe.stages.train.schedules.constant import Constant as Constant
from ortpipe.stages.train.schedules.inverse_scaling import InverseScaling
from ortpipe.stages.train.schedules.optimal import Optimal

if TYPE_CHECKING:
    import numpy as np


class Schedule(Protocol):
    """A config that gives learning rates when called."""

    def __call__(self, lr: float, step: np.ndarray, losses: Sequence[float] = ()) -> np.ndarray:
        """Return the rate of each step (counted from 1), float64, from the base rate and every epoch's loss so far."""


SCHEDULES: dict[str, type] = {
    "adaptive": Adaptive,
    "constant": Constant,
    "inverse_scaling": InverseScaling,
    "optimal": Optimal,
}
