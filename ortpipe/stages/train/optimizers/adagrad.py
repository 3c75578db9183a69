"""Adagrad: s ← s + g²; θ ← θ − η·g / (√s + ε)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_epsilon, check_rate
from ortpipe.stages.train.optimizer import Optimizer

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Rates that shrink with the squares seen so far (Duchi, Hazan and Singer, 2011), as `torch.optim.Adagrad`."""

    lr: float = 0.01
    epsilon: float = 1e-10
    slots: ClassVar[tuple[str, ...]] = ("squares",)

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_epsilon(self.epsilon)

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ and s."""
        [squares], [rate] = state, scalars
        squares = op.Add(squares, op.Mul(gradient, gradient))
        root = op.Add(op.Sqrt(squares), op.like(self.epsilon, parameter))
        return op.Sub(parameter, op.Mul(op.Div(gradient, root), rate)), (squares,)
