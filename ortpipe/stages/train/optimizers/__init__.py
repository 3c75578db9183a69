"""The catalogue of optimizers: each is a frozen dataclass that chains links, except lbfgs."""

from typing import ClassVar, Literal

from ortpipe.settings import Catalogue, Config
from ortpipe.stages.train.links import Link


class Optimizer(Config):
    """A member of the catalogue; calling it returns the links from the gradient to the parameter's update.

    Attributes:
        lr: the base learning rate η, which the schedule shapes.
    """

    lr: float
    solver: ClassVar[Literal["minibatch", "lbfgs"]] = "minibatch"  # the algorithm that uses these settings
    decides: ClassVar[tuple[str, ...]] = ()  # settings of train that it controls; they must keep their defaults

    def __call__(self) -> tuple[Link, ...]:
        return ()


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
    open_to_own=True,
)
