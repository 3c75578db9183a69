"""SGD with momentum: v ← μ·v − η·g; θ ← θ + v."""

from dataclasses import dataclass

from ortpipe.settings import Positive, Share
from ortpipe.stages.train.links import Link, scale_by_rate, trace
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
