"""The catalogue of optimizers: each is a frozen dataclass that writes one parameter's update as graph nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from ortpipe.stages.train.optimizers.momentum import Momentum
from ortpipe.stages.train.optimizers.nesterov import Nesterov
from ortpipe.stages.train.optimizers.sgd import SGD as SGD

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


class Optimizer(Protocol):
    """A config that writes an update when called."""

    scaled: ClassVar[bool]  # it needs −η·g alone, which it is then given as the gradient: the backward pass scales it
    slots: ClassVar[tuple[str, ...]]  # the state kept per parameter: arrays of its shape and dtype, zero at first

    @property
    def lr(self) -> float:
        """The base learning rate, which the schedule shapes."""

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], rate: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return the next parameter and the next state."""


OPTIMIZERS: dict[str, type] = {
    "momentum": Momentum,
    "nesterov": Nesterov,
    "sgd": SGD,
}
