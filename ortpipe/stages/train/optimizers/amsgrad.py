"""AMSGrad: Adam whose v̂ never shrinks: w ← max(w, v); θ ← θ − η·m̂ / (√ŵ + ε)."""

from dataclasses import dataclass

from ortpipe.stages.train.links import Link
from ortpipe.stages.train.optimizers.adam import Adam, scale_by_adam


@dataclass(frozen=True)
class AMSGrad(Adam):
    """Adam with the largest second moment seen (Reddi, Kale and Kumar, 2018), as `torch.optim.Adam(amsgrad=True)`."""

    def __call__(self) -> tuple[Link, ...]:
        return (scale_by_adam(self.beta1, self.beta2, self.epsilon, largest=True),)
