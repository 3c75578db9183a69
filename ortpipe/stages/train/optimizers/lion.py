"""Lion: θ ← θ − η·λ·θ − η·sign(β₁·m + (1 − β₁)·g); m ← β₂·m + (1 − β₂)·g."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_decay, check_rate, check_weight_decay
from ortpipe.stages.train.optimizer import Optimizer

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of one size, by the sign of the momentum (Chen et al., 2023), as `optax.lion`."""

    lr: float = 0.0001
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    slots: ClassVar[tuple[str, ...]] = ("mean",)
    scalars: ClassVar[tuple[str, ...]] = ("rate", "kept")

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_decay("beta1", self.beta1)
        check_decay("beta2", self.beta2)
        check_weight_decay(self.weight_decay)

    def per_step(self, rates: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return η and 1 − η·λ."""
        return rates, 1 - rates * self.weight_decay

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ and m."""
        [mean], (rate, kept) = state, scalars
        b1, r1, b2, r2 = (op.like(v, gradient) for v in (self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2))
        direction = op.Sign(op.Add(op.Mul(mean, b1), op.Mul(gradient, r1)))
        mean = op.Add(op.Mul(mean, b2), op.Mul(gradient, r2))
        return op.Sub(op.Mul(parameter, kept), op.Mul(direction, rate)), (mean,)
