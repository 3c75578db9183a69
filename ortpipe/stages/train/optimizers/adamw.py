"""AdamW: Adam with decoupled weight decay: θ ← θ − η·λ·θ − η·m̂ / (√v̂ + ε)."""

from dataclasses import dataclass

from ortpipe.settings import NotNegative
from ortpipe.stages.train.links import Link, decay, scale_by_adam
from ortpipe.stages.train.optimizers.adam import Adam


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`.

    Attributes:
        weight_decay: λ; each step shrinks the parameters by the fraction η·λ.
    """

    weight_decay: NotNegative = 0.01

    def __call__(self) -> tuple[Link, ...]:
        return scale_by_adam(self.beta1, self.beta2, self.epsilon), decay(self.weight_decay)
