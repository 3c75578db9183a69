"""The catalogue of optimizers: each is a frozen dataclass that writes an update as graph nodes, but for lbfgs."""

from __future__ import annotations

from ortpipe.settings import Catalogue
from ortpipe.stages.train.optimizers.adadelta import Adadelta
from ortpipe.stages.train.optimizers.adagrad import Adagrad
from ortpipe.stages.train.optimizers.adam import Adam
from ortpipe.stages.train.optimizers.adamw import AdamW
from ortpipe.stages.train.optimizers.amsgrad import AMSGrad
from ortpipe.stages.train.optimizers.lbfgs import LBFGS as LBFGS
from ortpipe.stages.train.optimizers.lion import Lion
from ortpipe.stages.train.optimizers.momentum import Momentum
from ortpipe.stages.train.optimizers.nadam import NAdam
from ortpipe.stages.train.optimizers.nesterov import Nesterov
from ortpipe.stages.train.optimizers.rmsprop import RMSprop
from ortpipe.stages.train.optimizers.sgd import SGD as SGD

OPTIMIZERS: Catalogue[type] = Catalogue(
    "optimizer",
    {
        "adadelta": Adadelta,
        "adagrad": Adagrad,
        "adam": Adam,
        "adamw": AdamW,
        "amsgrad": AMSGrad,
        "lbfgs": LBFGS,
        "lion": Lion,
        "momentum": Momentum,
        "nadam": NAdam,
        "nesterov": Nesterov,
        "rmsprop": RMSprop,
        "sgd": SGD,
    },
)
