"""What every optimizer is: settings that name a chain of links, or a solver of its own."""

from __future__ import annotations

from typing import ClassVar, Literal

from ortpipe.settings import Config
from ortpipe.stages.train.links import Link


class Optimizer(Config):
    """A member of the catalogue; `lr` is the base learning rate, which the schedule shapes.

    Attributes:
        solver: what moves the parameters with these settings: see `stage.SOLVERS`.
        decides: settings of train that it decides itself, which keep their defaults.
    """

    lr: float
    solver: ClassVar[Literal["minibatch", "lbfgs"]] = "minibatch"
    decides: ClassVar[tuple[str, ...]] = ()

    def links(self) -> tuple[Link, ...]:
        """Return the links of a mini-batch step, which take the gradient to what is added to the parameter."""
        return ()
