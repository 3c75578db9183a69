"""AdamW: Adam with decoupled weight decay: θ ← θ − η·λ·θ − η·m̂ / (√v̂ + ε)."""

from dataclasses import dataclass

import numpy as np

from ortpipe.graph.core.formulas import Builder
from ortpipe.settings import NotNegative
from ortpipe.stages.train.links import Inputs, Link, Outputs
from ortpipe.stages.train.optimizers.adam import Adam, scale_by_adam


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`.

    Attributes:
        weight_decay: λ; each step shrinks the parameters by the fraction η·λ.
    """

    weight_decay: NotNegative = 0.01

    def __call__(self) -> tuple[Link, ...]:
        return scale_by_adam(self.beta1, self.beta2, self.epsilon), decay(self.weight_decay)


def decay(strength: float | np.ndarray) -> Link:
    """u ← u − η·λ·θ, decoupled weight decay (Loshchilov and Hutter, 2019); λ is a number or one per element."""

    def update(op: Builder, x: Inputs) -> Outputs:
        return op.Add(x.u, op.Mul(x.theta, op.Mul(x.const(op, strength), *x.scalars))), ()

    return Link(update, scalars={"decay_rate": lambda rates, steps: -rates})
