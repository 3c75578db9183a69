"""Adagrad: s ← s + g²; θ ← θ − η·g / (√s + ε)."""

from dataclasses import dataclass

from ortpipe.settings import NotNegative, Positive
from ortpipe.stages.train.links import Link, scale_by_rate, scale_by_squares
from ortpipe.stages.train.optimizers import Optimizer


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Rates that shrink with the squares seen so far (Duchi, Hazan and Singer, 2011), as `torch.optim.Adagrad`.

    Attributes:
        epsilon: ε, which keeps the division finite.
    """

    lr: Positive = 0.01
    epsilon: NotNegative = 1e-10

    def __call__(self) -> tuple[Link, ...]:
        return scale_by_squares(self.epsilon), scale_by_rate()
