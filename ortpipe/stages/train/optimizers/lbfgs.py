"""L-BFGS: θ ← θ − α·H·∇L(θ) on all rows at once, H from the last gradients, α by a line search."""

from __future__ import annotations

from dataclasses import dataclass

from ortpipe.errors import ConfigError
from ortpipe.settings import Config


@dataclass(frozen=True)
class LBFGS(Config):
    """SciPy's L-BFGS-B (Byrd, Lu, Nocedal and Zhu, 1995) on the gradient graph; an epoch is one iteration.

    It reads all rows in every step, whatever train.batch_size says, and finds the length of its steps itself. A stopped
    training begins anew: SciPy keeps the history to itself.

    Attributes:
        history: how many of the last gradients H is made of.
        tolerance: training ends once no entry of the gradient is larger.
        improvement: and once an iteration lowers the loss by less than this part of it.
    """

    history: int = 10
    tolerance: float = 1e-5
    improvement: float = 1e-14

    def __post_init__(self) -> None:
        if self.history < 1:
            fix = "Set train.optimizer.history=10."
            raise ConfigError("train.optimizer.history is at least 1.", got=self.history, fix=fix)
        for name in ("tolerance", "improvement"):
            if not 0 <= getattr(self, name) < float("inf"):
                fix = f"Set train.optimizer.{name}=1e-8."
                raise ConfigError(
                    f"train.optimizer.{name} is finite and not negative.", got=getattr(self, name), fix=fix
                )
