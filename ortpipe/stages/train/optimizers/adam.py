"""Adam: m ← β₁·m + (1 − β₁)·g; v ← β₂·v + (1 − β₂)·g²; θ ← θ − η·m̂ / (√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_decay, check_epsilon, check_rate
from ortpipe.stages.train.optimizer import Optimizer

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class Adam(Optimizer):
    """Running means of gradients and their squares (Kingma and Ba, 2015), as `torch.optim.Adam`.

    The corrections 1 − βᵗ are taken into two scalars per step, made outside the graph:
    m̂/(√v̂ + ε) = m·√c₂/c₁ / (√v + ε·√c₂), c = 1 − βᵗ.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("mean", "squares")
    scalars: ClassVar[tuple[str, ...]] = ("rate", "epsilon")

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_decay("beta1", self.beta1)
        check_decay("beta2", self.beta2)
        check_epsilon(self.epsilon)

    def per_step(self, rates: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return η·√c₂/c₁ and ε·√c₂."""
        root = (1 - self.beta2**steps) ** 0.5
        return rates * root / (1 - self.beta1**steps), self.epsilon * root

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ, and m and v."""
        mean, squares = moments(op, gradient, state[0], state[1], self.beta1, self.beta2)
        return op.Sub(parameter, adam_step(op, mean, squares, *scalars)), (mean, squares)


def moments(
    op: Builder, gradient: ir.Value, mean: ir.Value, squares: ir.Value, beta1: float, beta2: float
) -> tuple[ir.Value, ir.Value]:
    """Return β₁·m + (1 − β₁)·g and β₂·v + (1 − β₂)·g²."""
    b1, r1, b2, r2 = (op.like(v, gradient) for v in (beta1, 1 - beta1, beta2, 1 - beta2))
    mean = op.Add(op.Mul(mean, b1), op.Mul(gradient, r1))
    return mean, op.Add(op.Mul(squares, b2), op.Mul(op.Mul(gradient, gradient), r2))


def adam_step(op: Builder, mean: ir.Value, squares: ir.Value, rate: ir.Value, epsilon: ir.Value) -> ir.Value:
    """Return rate · m / (√v + epsilon)."""
    step: ir.Value = op.Mul(op.Div(mean, op.Add(op.Sqrt(squares), epsilon)), rate)
    return step
