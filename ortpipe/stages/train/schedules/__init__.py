"""The catalogue of schedules: each is a frozen dataclass that returns the rates of steps when called."""

from collections.abc import Sequence

import numpy as np

from ortpipe.settings import Catalogue, Config

Steps = np.ndarray  # numbers of steps, from 1, or their rates


class Schedule(Config):
    """A config that gives learning rates when called; steps are counted from 1."""

    def __call__(self, lr: float, step: Steps, total: int) -> Steps:
        """Return the rate of each step, float64, from the base rate and the total number of training steps."""
        return np.full(np.shape(step), lr, np.float64)

    def factor(self, monitored: Sequence[float]) -> float:
        """Return the factor for the next epoch's rates from the monitored values so far (lower is better)."""
        return 1.0


SCHEDULES: Catalogue[type] = Catalogue(
    "schedule",
    {
        "adaptive": "ortpipe.stages.train.schedules.adaptive:Adaptive",
        "constant": "ortpipe.stages.train.schedules.constant:Constant",
        "cosine": "ortpipe.stages.train.schedules.cosine:Cosine",
        "exponential": "ortpipe.stages.train.schedules.exponential:Exponential",
        "inverse_scaling": "ortpipe.stages.train.schedules.inverse_scaling:InverseScaling",
        "one_cycle": "ortpipe.stages.train.schedules.one_cycle:OneCycle",
        "optimal": "ortpipe.stages.train.schedules.optimal:Optimal",
        "polynomial": "ortpipe.stages.train.schedules.polynomial:Polynomial",
        "reduce_on_plateau": "ortpipe.stages.train.schedules.reduce_on_plateau:ReduceOnPlateau",
        "step": "ortpipe.stages.train.schedules.step:StepDecay",
    },
    open_to_own=True,
)
