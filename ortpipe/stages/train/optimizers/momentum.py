"""SGD with momentum: v ← μ·v − η·g; θ ← θ + v."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.checks import check_decay, check_rate
from ortpipe.stages.train.optimizer import Optimizer
from ortpipe.stages.train.plus import plus

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Heavy-ball momentum (Polyak, 1964), as scikit-learn's `MLPClassifier(solver='sgd', nesterovs_momentum=False)`."""

    lr: float = 0.01
    momentum: float = 0.9
    scaled: ClassVar[bool] = True
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_decay("momentum", self.momentum)

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ + v and v."""
        [velocity] = state
        velocity = plus(op, op.Mul(velocity, op.like(self.momentum, parameter)), gradient)
        return op.Add(parameter, velocity), (velocity,)
