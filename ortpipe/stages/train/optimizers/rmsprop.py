"""RMSprop: s ← α·s + (1 − α)·g²; θ ← θ − η·g / (√s + ε)."""

from dataclasses import dataclass

from ortpipe.settings import NotNegative, Positive, Share
from ortpipe.stages.train.links import Link, scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer
from ortpipe.stages.train.optimizers.adagrad import scale_by_squares


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Rates by a running mean of squares (Tieleman and Hinton, 2012), as `torch.optim.RMSprop`.

    Attributes:
        alpha: α, the decay of the running mean of squares.
        epsilon: ε, which keeps the division finite.
    """

    lr: Positive = 0.01
    alpha: Share = 0.99
    epsilon: NotNegative = 1e-8

    def __call__(self) -> tuple[Link, ...]:
        return scale_by_squares(self.epsilon, self.alpha), scale_by_rate()
