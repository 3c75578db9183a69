"""The catalogue of schedules: each is a frozen dataclass that is called for the rates of steps."""

from __future__ import annotations

from ortpipe.settings import Catalogue

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
        "step": "ortpipe.stages.train.schedules.step:Step",
    },
)
