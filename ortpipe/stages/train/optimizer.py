"""What every optimizer is: one update, written as graph nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ortpipe.settings import Config

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


class Optimizer(Config, ABC):
    """A config that writes an update when called; `lr` is the base learning rate, which the schedule shapes.

    Attributes:
        scaled: whether it needs −η·g alone. It is then given that as the gradient, parameter by parameter: the backward
            pass scales it. One that is not is elementwise, and called once: with all parameters as one flat vector.
        slots: the state kept per element of a parameter, zero at first.
        scalars: what every step has of its own, the rate among it.
    """

    lr: float
    scaled: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ()
    scalars: ClassVar[tuple[str, ...]] = ("rate",)

    def per_step(self, rates: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the scalars of these steps (counted from 1) [steps] in float64, from the schedule's rates."""
        return (rates,)

    @abstractmethod
    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return the next parameter and the next state."""
