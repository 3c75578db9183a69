"""Adam: m ← β₁·m + (1 − β₁)·g; v ← β₂·v + (1 − β₂)·g²; θ ← θ − η·m̂ / (√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ)."""

from dataclasses import dataclass

from ortpipe.settings import NotNegative, Positive, Share
from ortpipe.stages.train.links import Link, scale_by_adam
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
