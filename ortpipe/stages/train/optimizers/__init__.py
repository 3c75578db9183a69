"""The catalogue of optimizers: each is a frozen dataclass that writes an update as graph nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from ortpipe.stages.train.optimizers.adadelta import Adadelta
from ortpipe.stages.train.optimizers.adagrad import Adagrad
from ortpipe.stages.train.optimizers.adam import Adam
from ortpipe.stages.train.optimizers.adamw import AdamW
from ortpipe.stages.train.optimizers.amsgrad import AMSGrad
from ortpipe.stages.train.optimizers.lion import Lion
from ortpipe.stages.train.optimizers.momentum import Momentum
from ortpipe.stages.train.optimizers.nadam import NAdam
from ortpipe.stages.train.optimizers.nesterov import Nesterov
from ortpipe.stages.train.optimizers.rmsprop import RMSprop
from ortpipe.stages.train.optimizers.sgd import SGD as SGD

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


class Optimizer(Protocol):
    """A config that writes an update when called.

    Attributes:
        scaled: whether it needs −η·g alone. It is then given that as the gradient, parameter by parameter: the backward
            pass scales it. One that is not is elementwise, and called once: with all parameters as one flat vector.
        slots: the state kept per element of a parameter, zero at first.
        scalars: what every step has of its own, the rate among it.
    """

    scaled: ClassVar[bool]
    slots: ClassVar[tuple[str, ...]]
    scalars: ClassVar[tuple[str, ...]]

    @property
    def lr(self) -> float:
        """The base learning rate, which the schedule shapes."""

    def per_step(self, rates: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the scalars of these steps (counted from 1) [steps] in float64, from the schedule's rates."""

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return the next parameter and the next state."""


OPTIMIZERS: dict[str, type] = {
    "adadelta": Adadelta,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "amsgrad": AMSGrad,
    "lion": Lion,
    "momentum": Momentum,
    "nadam": NAdam,
    "nesterov": Nesterov,
    "rmsprop": RMSprop,
    "sgd": SGD,
}
