"""L-BFGS: θ ← θ − α·H·∇L(θ) on all rows at once, H from the last gradients, α by a line search."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ortpipe.settings import Count, NotNegative
from ortpipe.stages.train.optimizers import Optimizer


@dataclass(frozen=True)
class LBFGS(Optimizer):
    """The settings of SciPy's L-BFGS-B (Byrd, Lu, Nocedal and Zhu, 1995), a solver that finds its rates itself.

    It reads all rows in every step, whatever train.batch_size says, and an epoch is one iteration. A stopped training
    begins anew: SciPy keeps the history to itself.

    Attributes:
        history: how many of the last gradients H is made of.
        tolerance: training ends once no entry of the gradient is larger.
        improvement: and once an iteration lowers the loss by less than this part of it.
    """

    history: Count = 10
    tolerance: NotNegative = 1e-5
    improvement: NotNegative = 1e-14
    solver: ClassVar[Literal["minibatch", "lbfgs"]] = "lbfgs"
    decides: ClassVar[tuple[str, ...]] = (
        *("schedule", "warmup", "accumulate", "clip", "weight_decay", "factors", "average"),
    )
