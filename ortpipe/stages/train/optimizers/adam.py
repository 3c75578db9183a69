"""Adam: m ← β₁·m + (1 − β₁)·g; v ← β₂·v + (1 − β₂)·g²; θ ← θ − η·m̂ / (√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ)."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import NotNegative, Positive, Share
from ortpipe.stages.train.links import Inputs, Link, Outputs, Scalar
from ortpipe.stages.train.optimizers import Optimizer


@dataclass(frozen=True)
class Adam(Optimizer):
    """Running means of gradients and their squares (Kingma and Ba, 2015), as `torch.optim.Adam`.

    Attributes:
        beta1: β₁, the decay of the running mean of gradients.
        beta2: β₂, the decay of the running mean of their squares.
        epsilon: ε, which keeps the division finite.
    """

    lr: Positive = 0.001
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: NotNegative = 1e-8

    def __call__(self) -> tuple[Link, ...]:
        return (scale_by_adam(self.beta1, self.beta2, self.epsilon),)


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


def moments(op: Builder, x: Inputs, beta1: float, beta2: float) -> tuple[Value, ...]:
    """Return the running means of u and u²."""
    return x.mean(op, x.state[0], x.u, beta1), x.mean(op, x.state[1], op.Mul(x.u, x.u), beta2)
