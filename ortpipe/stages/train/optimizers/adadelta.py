"""Adadelta: s ← ρ·s + (1 − ρ)·g²; d = g·√(u + ε) / √(s + ε); u ← ρ·u + (1 − ρ)·d²; θ ← θ − η·d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_decay, check_epsilon, check_rate
from ortpipe.stages.train.optimizer import Optimizer

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Steps of the size of the steps before (Zeiler, 2012), as `torch.optim.Adadelta`."""

    lr: float = 1.0
    rho: float = 0.9
    epsilon: float = 1e-6
    slots: ClassVar[tuple[str, ...]] = ("squares", "steps")

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_decay("rho", self.rho)
        check_epsilon(self.epsilon)

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ, and s and u."""
        (squares, steps), [rate] = state, scalars
        rho, rest, epsilon = (op.like(v, parameter) for v in (self.rho, 1 - self.rho, self.epsilon))
        squares = op.Add(op.Mul(squares, rho), op.Mul(op.Mul(gradient, gradient), rest))
        size = op.Div(op.Sqrt(op.Add(steps, epsilon)), op.Sqrt(op.Add(squares, epsilon)))
        step = op.Mul(gradient, size)
        steps = op.Add(op.Mul(steps, rho), op.Mul(op.Mul(step, step), rest))
        return op.Sub(parameter, op.Mul(step, rate)), (squares, steps)
