"""One cycle: from η/d up to η along a cosine, then down to η/(d·f)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.stages.train.checks import check_decay, check_setting
from ortpipe.stages.train.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class OneCycle(Schedule):
    """The 1cycle policy (Smith and Topin, 2018), as PyTorch's `OneCycleLR`: the base rate is the highest.

    Attributes:
        rise: the part of all steps that goes up.
        start: d; the first rate is η/d.
        end: f; the last rate is η/(d·f).
    """

    rise: float = 0.3
    start: float = 25.0
    end: float = 10000.0

    def __post_init__(self) -> None:
        check_decay("rise", self.rise)
        check_setting("start", self.start, 1)
        check_setting("end", self.end, 1)

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        """Return the rates."""
        import numpy as np

        top, last, done = self.rise * total - 1, total - 1, step - 1.0
        first, final = lr / self.start, lr / self.start / self.end
        up = lr + (first - lr) * (1 + np.cos(np.pi * (done / max(top, 1e-9)).clip(0, 1))) / 2
        down = final + (lr - final) * (1 + np.cos(np.pi * ((done - top) / max(last - top, 1e-9)).clip(0, 1))) / 2
        return np.where(done <= top, up, down)
