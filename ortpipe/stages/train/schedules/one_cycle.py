"""One cycle: from η/d up to η along a cosine, then down to η/(d·f)."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from ortpipe.settings import Share
from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class OneCycle(Schedule):
    """The 1cycle policy (Smith and Topin, 2018), as PyTorch's `OneCycleLR`: the base rate is the highest.

    Attributes:
        rise: the fraction of all steps with a rising rate.
        start: d; the first rate is η/d.
        end: f; the last rate is η/(d·f).
    """

    rise: Share = 0.3
    start: Annotated[float, Ge(1), Lt(math.inf)] = 25.0
    end: Annotated[float, Ge(1), Lt(math.inf)] = 10000.0

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        top, last, done = self.rise * total - 1, total - 1, step - 1.0
        first, final = lr / self.start, lr / self.start / self.end
        up = lr + (first - lr) * (1 + np.cos(np.pi * (done / max(top, 1e-9)).clip(0, 1))) / 2
        down = final + (lr - final) * (1 + np.cos(np.pi * ((done - top) / max(last - top, 1e-9)).clip(0, 1))) / 2
        return np.where(done <= top, up, down)
