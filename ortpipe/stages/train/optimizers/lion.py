"""Lion: θ ← θ − η·λ·θ − η·sign(β₁·m + (1 − β₁)·g); m ← β₂·m + (1 − β₂)·g."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder
from ortpipe.settings import NotNegative, Positive, Share
from ortpipe.stages.train.links import Inputs, Link, Outputs, scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer
from ortpipe.stages.train.optimizers.adamw import decay


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of one size, by the sign of the momentum (Chen et al., 2023), as `optax.lion`.

    Attributes:
        beta1: β₁, the weight of the running mean in the step's sign.
        beta2: β₂, the decay of the running mean of gradients.
        weight_decay: λ; each step shrinks the parameters by the fraction η·λ.
    """

    lr: Positive = 0.0001
    beta1: Share = 0.9
    beta2: Share = 0.99
    weight_decay: NotNegative = 0.0

    def __call__(self) -> tuple[Link, ...]:
        sign = Link(self._sign, ("mean",))
        return sign, scale_by_rate(), *([decay(self.weight_decay)] if self.weight_decay else [])

    def _sign(self, op: Builder, x: Inputs) -> Outputs:
        [old] = x.state
        return op.Sign(x.mean(op, old, x.u, self.beta1)), (x.mean(op, old, x.u, self.beta2),)
