"""AMSGrad: Adam whose v̂ never shrinks: w ← max(w, v); θ ← θ − η·m̂ / (√ŵ + ε)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.stages.train.optimizers.adam import Adam, adam_step, moments

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


@dataclass(frozen=True)
class AMSGrad(Adam):
    """Adam with the largest second moment seen (Reddi, Kale and Kumar, 2018), as `torch.optim.Adam(amsgrad=True)`."""

    slots: ClassVar[tuple[str, ...]] = ("mean", "squares", "largest")

    def __call__(
        self, op: Builder, parameter: ir.Value, gradient: ir.Value, state: Sequence[ir.Value], *scalars: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Value, ...]]:
        """Return θ, and m, v and w."""
        mean, squares = moments(op, gradient, state[0], state[1], self.beta1, self.beta2)
        largest = op.Max(state[2], squares)
        return op.Sub(parameter, adam_step(op, mean, largest, *scalars)), (mean, squares, largest)
