"""RMSprop: s ← α·s + (1 − α)·g²; θ ← θ − η·g / (√s + ε)."""

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
class RMSprop(Optimizer):
    """Rates by a running mean of squares (Tieleman and Hinton, 2012), as `torch.optim.RMSprop`."""

    lr: float = 0.01
    alpha: float = 0.99
    epsilon: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("squares",)

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_decay("alpha", self.alpha)
        check_epsilon(self.epsilon)

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ and s."""
        [squares], [rate] = state, scalars
        squares = op.Add(
            op.Mul(squares, op.like(self.alpha, parameter)),
            op.Mul(op.Mul(gradient, gradient), op.like(1 - self.alpha, parameter)),
        )
        root = op.Add(op.Sqrt(squares), op.like(self.epsilon, parameter))
        return op.Sub(parameter, op.Mul(op.Div(gradient, root), rate)), (squares,)
