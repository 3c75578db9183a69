"""Links, which optimizers chain: each transforms an update u, at first the gradient.

The last link's result is added to the parameter: θ ← θ + u, so a rate is a factor −η. Modelled on optax.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ortpipe.graph.core.formulas import Builder, Value

AVERAGE = "average"  # the slot of averaged parameters, which training returns instead of the parameters
Outputs = tuple[Value, Sequence[Value]]  # u and the next state
# (rates [steps], step numbers from 1) → float64
Scalar = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Inputs(NamedTuple):
    """The inputs of a link."""

    theta: Value
    u: Value  # of θ's shape
    state: Sequence[Value]  # one per slot, of θ's shape
    scalars: Sequence[Value]  # []

    def const(self, op: Builder, number: float | np.ndarray) -> Value:
        """Return a constant in θ's type."""
        assert self.theta.dtype is not None
        return op.const(np.asarray(number, self.theta.dtype.numpy()))

    def mean(self, op: Builder, old: Value, new: Value, share: float) -> Value:
        """Return β·old + (1 − β)·new."""
        return op.Add(op.Mul(old, self.const(op, share)), op.Mul(new, self.const(op, 1 - share)))


@dataclass(frozen=True)
class Link:
    """One link of a chain."""

    update: Callable[[Builder, Inputs], Outputs]  # writes the link as elementwise graph nodes
    slots: tuple[str, ...] = ()  # its state: values of θ's shape, initially zero (`AVERAGE`: θ)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)  # per-step values by name
    linear: bool = False  # whether u is only scaled and summed, which the backward pass's products can include


def scale_by_rate() -> Link:
    """u ← −η·u."""
    return Link(lambda op, x: (op.Mul(x.u, *x.scalars), ()), scalars={"rate": lambda rates, steps: -rates}, linear=True)
