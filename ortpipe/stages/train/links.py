"""Links, which optimizers chain: each transforms an update u, at first the gradient.

The last link's result is added to the parameter: θ ← θ + u, so a rate is a factor −η. Modelled on optax.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder

AVERAGE = "average"  # the slot of averaged parameters, which training returns instead of the parameters
Outputs = tuple[ir.Value, Sequence[ir.Value]]  # u and the next state
# (rates [steps], step numbers from 1) → float64
Scalar = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Inputs(NamedTuple):
    """The inputs of a link."""

    theta: ir.Value
    u: ir.Value  # of θ's shape
    state: Sequence[ir.Value]  # one per slot, of θ's shape
    scalars: Sequence[ir.Value]  # []

    def const(self, op: Builder, number: float | np.ndarray) -> ir.Value:
        """Return a constant in θ's type."""
        assert self.theta.dtype is not None
        return op.const(np.asarray(number, self.theta.dtype.numpy()))

    def mean(self, op: Builder, old: ir.Value, new: ir.Value, share: float) -> ir.Value:
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
    return Link(lambda op, x: (op.Mul(x.u, *x.scalars), ()), scalars={"rate": _minus_rate}, linear=True)


def _minus_rate(rates: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return -rates


def trace(momentum: float, *, nesterov: bool = False) -> Link:
    """v ← μ·v + u; u ← v, or μ·v + u with Nesterov momentum: written (1 + μ)·v − μ·v_old, which reads u only once."""

    def update(op: Builder, x: Inputs) -> Outputs:
        decayed = op.Mul(*x.state, x.const(op, momentum))
        velocity = op.Add(decayed, x.u)
        return op.Sub(op.Mul(velocity, x.const(op, 1 + momentum)), decayed) if nesterov else velocity, (velocity,)

    return Link(update, ("velocity",), linear=True)


def scale_by_squares(epsilon: float, share: float | None = None) -> Link:
    """s ← s + u², or s ← α·s + (1 − α)·u² with a share α; u ← u / (√s + ε)."""

    def update(op: Builder, x: Inputs) -> Outputs:
        [squares], square = x.state, op.Mul(x.u, x.u)
        squares = op.Add(squares, square) if share is None else x.mean(op, squares, square, share)
        return op.Div(x.u, op.Add(op.Sqrt(squares), x.const(op, epsilon))), (squares,)

    return Link(update, ("squares",))


def scale_by_adam(beta1: float, beta2: float, epsilon: float, *, largest: bool = False) -> Link:
    """m ← β₁·m + (1 − β₁)·u; v ← β₂·v + (1 − β₂)·u²; u ← −η·m̂ / (√v̂ + ε); `largest`: use the largest v so far.

    The corrections m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ) become two per-step scalars, computed outside the graph:
    m̂/(√v̂ + ε) = m·√c₂/c₁ / (√v + ε·√c₂), c = 1 − βᵗ.
    """

    def update(op: Builder, x: Inputs) -> Outputs:
        state = moments(op, x, beta1, beta2)
        state += (op.Max(x.state[2], state[1]),) if largest else ()
        return op.Mul(op.Div(state[0], op.Add(op.Sqrt(state[-1]), x.scalars[1])), x.scalars[0]), state

    scalars: dict[str, Scalar] = {
        "rate": lambda rates, steps: -rates * (1 - beta2**steps) ** 0.5 / (1 - beta1**steps),
        "epsilon": lambda rates, steps: epsilon * (1 - beta2**steps) ** 0.5,
    }
    return Link(update, ("mean", "squares", "largest") if largest else ("mean", "squares"), scalars)


def moments(op: Builder, x: Inputs, beta1: float, beta2: float) -> tuple[ir.Value, ...]:
    """Return the running means of u and u²."""
    return x.mean(op, x.state[0], x.u, beta1), x.mean(op, x.state[1], op.Mul(x.u, x.u), beta2)


def decay(strength: float | np.ndarray) -> Link:
    """u ← u − η·λ·θ, decoupled weight decay (Loshchilov and Hutter, 2019); λ is a number or one per element."""

    def update(op: Builder, x: Inputs) -> Outputs:
        return op.Add(x.u, op.Mul(x.theta, op.Mul(x.const(op, strength), *x.scalars))), ()

    return Link(update, scalars={"decay_rate": _minus_rate})
