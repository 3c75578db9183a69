"""The catalogue of optimizers: each is a frozen dataclass that writes an update as graph nodes, but for lbfgs."""

from __future__ import annotations

from ortpipe.settings import Catalogue

OPTIMIZERS: Catalogue[type] = Catalogue(
    "optimizer",
    {
        "adadelta": "ortpipe.stages.train.optimizers.adadelta:Adadelta",
        "adagrad": "ortpipe.stages.train.optimizers.adagrad:Adagrad",
        "adam": "ortpipe.stages.train.optimizers.adam:Adam",
        "adamw": "ortpipe.stages.train.optimizers.adamw:AdamW",
        "amsgrad": "ortpipe.stages.train.optimizers.amsgrad:AMSGrad",
        "lbfgs": "ortpipe.stages.train.optimizers.lbfgs:LBFGS",
        "lion": "ortpipe.stages.train.optimizers.lion:Lion",
        "momentum": "ortpipe.stages.train.optimizers.momentum:Momentum",
        "nadam": "ortpipe.stages.train.optimizers.nadam:NAdam",
        "nesterov": "ortpipe.stages.train.optimizers.nesterov:Nesterov",
        "rmsprop": "ortpipe.stages.train.optimizers.rmsprop:RMSprop",
        "sgd": "ortpipe.stages.train.optimizers.sgd:SGD",
    },
)
