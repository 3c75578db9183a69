"""L-BFGS: θ ← θ − α·H·∇L(θ) on all rows at once; H from the last gradients, α by a line search."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ortpipe.settings import Count, NotNegative
from ortpipe.stages.train.optimizers import Optimizer


@dataclass(frozen=True)
class LBFGS(Optimizer):
    """The settings of SciPy's L-BFGS-B (Byrd, Lu, Nocedal and Zhu, 1995), which determines its own step sizes.

    Every step reads all rows, regardless of train.batch_size, and an epoch is one iteration. A stopped training starts
    again from the beginning, because SciPy does not expose the history.

    Attributes:
        history: the number of past gradients used for H.
        tolerance: stop if no entry of the gradient is larger.
        improvement: stop if an iteration lowers the loss by less than this fraction.
    """

    history: Count = 10
    tolerance: NotNegative = 1e-5
    improvement: NotNegative = 1e-14
    solver: ClassVar[Literal["minibatch", "lbfgs"]] = "lbfgs"
    decides: ClassVar[tuple[str, ...]] = (
        *("schedule", "warmup", "accumulate", "clip", "weight_decay", "factors", "average", "parallel"),
    )
