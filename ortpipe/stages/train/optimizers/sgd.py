"""Stochastic gradient descent: θ ← θ − η·g."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.errors import ConfigError
from ortpipe.stages.train.accumulate import plus

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class SGD:
    """Plain stochastic gradient descent (Robbins and Monro, 1951)."""

    lr: float = 0.01
    scaled: ClassVar[bool] = True
    slots: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_rate(self.lr)

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], rate: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ − η·g; there is no state."""
        return plus(op, parameter, gradient), ()


def check_rate(lr: float) -> None:
    """Refuse a learning rate that is not positive and finite."""
    if not 0 < lr < float("inf"):
        raise ConfigError("A learning rate is positive and finite.", got=lr, fix="Set train.optimizer.lr=0.01.")
