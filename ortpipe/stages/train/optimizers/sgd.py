"""Stochastic gradient descent: θ ← θ − η·g."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_rate
from ortpipe.stages.train.optimizer import Optimizer
from ortpipe.stages.train.plus import plus

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent (Robbins and Monro, 1951)."""

    lr: float = 0.01
    scaled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rate(self.lr)

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ − η·g; there is no state."""
        return plus(op, parameter, gradient), ()
