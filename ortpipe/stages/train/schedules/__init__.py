"""The catalogue of schedules: each is a frozen dataclass that is called for the rates of steps."""

from __future__ import annotations

from ortpipe.settings import Catalogue
from ortpipe.stages.train.schedules.adaptive import Adaptive
from ortpipe.stages.train.schedules.constant import Constant as Constant
from ortpipe.stages.train.schedules.cosine import Cosine
from ortpipe.stages.train.schedules.exponential import Exponential
from ortpipe.stages.train.schedules.inverse_scaling import InverseScaling
from ortpipe.stages.train.schedules.one_cycle import OneCycle
from ortpipe.stages.train.schedules.optimal import Optimal
from ortpipe.stages.train.schedules.polynomial import Polynomial
from ortpipe.stages.train.schedules.reduce_on_plateau import ReduceOnPlateau
from ortpipe.stages.train.schedules.step import Step

SCHEDULES: Catalogue[type] = Catalogue(
    "schedule",
    {
        "adaptive": Adaptive,
        "constant": Constant,
        "cosine": Cosine,
        "exponential": Exponential,
        "inverse_scaling": InverseScaling,
        "one_cycle": OneCycle,
        "optimal": Optimal,
        "polynomial": Polynomial,
        "reduce_on_plateau": ReduceOnPlateau,
        "step": Step,
    },
)
