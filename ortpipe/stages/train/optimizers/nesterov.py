"""SGD with Nesterov's momentum: v ← μ·v − η·g; θ ← θ + μ·v − η·g."""

from dataclasses import dataclass

from ortpipe.stages.train.links import Link, scale_by_rate
from ortpipe.stages.train.optimizers.momentum import Momentum, trace


@dataclass(frozen=True)
class Nesterov(Momentum):
    """Nesterov's momentum (Sutskever et al., 2013), as scikit-learn's `MLPClassifier(solver='sgd')`."""

    def __call__(self) -> tuple[Link, ...]:
        return scale_by_rate(), trace(self.momentum, nesterov=True)
