"""SGD with momentum: v ← μ·v − η·g; θ ← θ + v."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder
from ortpipe.settings import Positive, Share
from ortpipe.stages.train.links import Inputs, Link, Outputs, scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Heavy-ball momentum (Polyak, 1964), as scikit-learn's `MLPClassifier(solver='sgd', nesterovs_momentum=False)`.

    Attributes:
        momentum: μ, the fraction of the last step that is added to the next one.
    """

    lr: Positive = 0.01
    momentum: Share = 0.9

    def __call__(self) -> tuple[Link, ...]:
        return scale_by_rate(), trace(self.momentum)


def trace(momentum: float, *, nesterov: bool = False) -> Link:
    """v ← μ·v + u; u ← v, or μ·v + u with Nesterov momentum: written (1 + μ)·v − μ·v_old, which reads u only once."""

    def update(op: Builder, x: Inputs) -> Outputs:
        decayed = op.Mul(*x.state, x.const(op, momentum))
        velocity = op.Add(decayed, x.u)
        return op.Sub(op.Mul(velocity, x.const(op, 1 + momentum)), decayed) if nesterov else velocity, (velocity,)

    return Link(update, ("velocity",), linear=True)
