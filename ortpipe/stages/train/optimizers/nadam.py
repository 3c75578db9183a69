"""NAdam: Adam with Nesterov's look ahead: θ ← θ − η·((1 − μₜ)·g/(1 − Πμ) + μₜ₊₁·m/(1 − Πμ·μₜ₊₁)) / (√v̂ + ε)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_decay
from ortpipe.stages.train.optimizers.adam import Adam, moments

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class NAdam(Adam):
    """Adam with Nesterov's momentum (Dozat, 2016), as `torch.optim.NAdam`: μₜ = β₁·(1 − ½·0.96^(ψ·t))."""

    lr: float = 0.002
    momentum_decay: float = 0.004
    scalars: ClassVar[tuple[str, ...]] = ("gradient_rate", "mean_rate", "epsilon")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("momentum_decay", self.momentum_decay)

    def per_step(self, rates: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return what g and m are multiplied by, and ε·√c₂."""
        import numpy as np

        until = np.arange(1, steps[-1] + 2)
        momenta = self.beta1 * (1 - 0.5 * 0.96 ** (until * self.momentum_decay))
        products = np.cumprod(momenta)
        now, ahead = momenta[steps - 1], momenta[steps]
        root = (1 - self.beta2**steps) ** 0.5
        given = rates * root * (1 - now) / (1 - products[steps - 1])
        return given, rates * root * ahead / (1 - products[steps]), self.epsilon * root

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ, and m and v."""
        gradient_rate, mean_rate, epsilon = scalars
        mean, squares = moments(op, gradient, state[0], state[1], self.beta1, self.beta2)
        ahead = op.Add(op.Mul(gradient, gradient_rate), op.Mul(mean, mean_rate))
        return op.Sub(parameter, op.Div(ahead, op.Add(op.Sqrt(squares), epsilon))), (mean, squares)
