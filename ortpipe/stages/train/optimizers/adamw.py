"""AdamW: Adam with weight decay of its own: θ ← θ − η·λ·θ − η·m̂ / (√v̂ + ε)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_weight_decay
from ortpipe.stages.train.optimizers.adam import Adam, adam_step, moments

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`."""

    weight_decay: float = 0.01
    scalars: ClassVar[tuple[str, ...]] = ("rate", "epsilon", "kept")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight_decay(self.weight_decay)

    def per_step(self, rates: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return Adam's scalars and 1 − η·λ."""
        return *super().per_step(rates, steps), 1 - rates * self.weight_decay

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ, and m and v."""
        rate, epsilon, kept = scalars
        mean, squares = moments(op, gradient, state[0], state[1], self.beta1, self.beta2)
        step = adam_step(op, mean, squares, rate, epsilon)
        return op.Sub(op.Mul(parameter, kept), step), (mean, squares)
