"""SGD with momentum: v ← μ·v − η·g; θ ← θ + v."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.errors import ConfigError
from ortpipe.stages.train.accumulate import plus
from ortpipe.stages.train.optimizers.sgd import check_rate

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum (Polyak, 1964), as scikit-learn's `MLPClassifier(solver='sgd', nesterovs_momentum=False)`."""

    lr: float = 0.01
    momentum: float = 0.9
    scaled: ClassVar[bool] = True
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_momentum(self.momentum)

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], rate: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ + v and v."""
        [velocity] = state
        velocity = plus(op, op.Mul(velocity, op.like(self.momentum, parameter)), gradient)
        return op.Add(parameter, velocity), (velocity,)


def check_momentum(momentum: float) -> None:
    """Refuse a momentum outside [0, 1)."""
    if not 0 <= momentum < 1:
        raise ConfigError("A momentum lies in [0, 1).", got=momentum, fix="Set train.optimizer.momentum=0.9.")
