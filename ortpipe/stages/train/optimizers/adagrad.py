"""Adagrad: s ← s + g²; θ ← θ − η·g / (√s + ε)."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder
from ortpipe.settings import NotNegative, Positive
from ortpipe.stages.train.links import Inputs, Link, Outputs, scale_by_rate
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


def scale_by_squares(epsilon: float, share: float | None = None) -> Link:
    """s ← s + u², or s ← α·s + (1 − α)·u² with a share α; u ← u / (√s + ε)."""

    def update(op: Builder, x: Inputs) -> Outputs:
        [squares], square = x.state, op.Mul(x.u, x.u)
        squares = op.Add(squares, square) if share is None else x.mean(op, squares, square, share)
        return op.Div(x.u, op.Add(op.Sqrt(squares), x.const(op, epsilon))), (squares,)

    return Link(update, ("squares",))
