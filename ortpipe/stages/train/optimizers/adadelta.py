"""Adadelta: s ← ρ·s + (1 − ρ)·g²; d = g·√(u + ε) / √(s + ε); u ← ρ·u + (1 − ρ)·d²; θ ← θ − η·d."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder
from ortpipe.settings import NotNegative, Positive, Share
from ortpipe.stages.train.links import Inputs, Link, Outputs, scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Steps scaled by the size of previous steps (Zeiler, 2012), as `torch.optim.Adadelta`.

    Attributes:
        rho: ρ, the decay of both running means of squares.
        epsilon: ε, which starts the first steps and keeps the division finite.
    """

    lr: Positive = 1.0
    rho: Share = 0.9
    epsilon: NotNegative = 1e-6

    def __call__(self) -> tuple[Link, ...]:
        return Link(self._scale, ("squares", "steps")), scale_by_rate()

    def _scale(self, op: Builder, x: Inputs) -> Outputs:
        (squares, steps), epsilon = x.state, x.const(op, self.epsilon)
        squares = x.mean(op, squares, op.Mul(x.u, x.u), self.rho)
        step = op.Mul(x.u, op.Div(op.Sqrt(op.Add(steps, epsilon)), op.Sqrt(op.Add(squares, epsilon))))
        return step, (squares, x.mean(op, steps, op.Mul(step, step), self.rho))
