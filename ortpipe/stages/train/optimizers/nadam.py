"""NAdam: Adam with Nesterov momentum: θ ← θ − η·((1 − μₜ)·g/(1 − Πμ) + μₜ₊₁·m/(1 − Πμ·μₜ₊₁)) / (√v̂ + ε)."""

import functools
from dataclasses import dataclass

import numpy as np

from ortpipe.graph.core.formulas import Builder
from ortpipe.settings import Positive, Share
from ortpipe.stages.train.links import Inputs, Link, Outputs, Scalar
from ortpipe.stages.train.optimizers.adam import Adam, moments


@dataclass(frozen=True)
class NAdam(Adam):
    """Adam with Nesterov's momentum (Dozat, 2016), as `torch.optim.NAdam`: μₜ = β₁·(1 − ½·0.96^(ψ·t)).

    Attributes:
        momentum_decay: ψ, how fast the momentum μₜ rises to β₁.
    """

    lr: Positive = 0.002
    momentum_decay: Share = 0.004

    def __call__(self) -> tuple[Link, ...]:
        scalars: dict[str, Scalar] = {  # these include the corrections, as in Adam
            "gradient_rate": self._gradient_rate,
            "mean_rate": self._mean_rate,
            "epsilon": lambda rates, steps: self.epsilon * self._root(steps),
        }
        return (Link(self._update, ("mean", "squares"), scalars),)

    def _update(self, op: Builder, x: Inputs) -> Outputs:
        gradient_rate, mean_rate, epsilon = x.scalars
        first, second = moments(op, x, self.beta1, self.beta2)
        ahead = op.Add(op.Mul(x.u, gradient_rate), op.Mul(first, mean_rate))
        return op.Div(ahead, op.Add(op.Sqrt(second), epsilon)), (first, second)

    def _gradient_rate(self, rates: np.ndarray, steps: np.ndarray) -> np.ndarray:
        momenta, products = _momenta(self.beta1, self.momentum_decay, int(steps[-1]))
        return -rates * self._root(steps) * (1 - momenta[steps - 1]) / (1 - products[steps - 1])

    def _mean_rate(self, rates: np.ndarray, steps: np.ndarray) -> np.ndarray:
        momenta, products = _momenta(self.beta1, self.momentum_decay, int(steps[-1]))
        return -rates * self._root(steps) * momenta[steps] / (1 - products[steps])

    def _root(self, steps: np.ndarray) -> np.ndarray:
        return (1 - self.beta2**steps) ** 0.5


@functools.lru_cache(maxsize=1)  # two scalars of a step need them
def _momenta(beta1: float, decay: float, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every μ up to the one after the last step, and their running products."""
    momenta = beta1 * (1 - 0.5 * 0.96 ** (np.arange(1, last + 2) * decay))
    return momenta, np.cumprod(momenta)
