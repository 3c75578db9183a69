"""The plan of a run: train's checked arguments and the initial values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.artifact import Arrays, Artifact, under
from ortpipe.data.rows import Data, Rows
from ortpipe.doors import later
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.config import TrainConfig

if TYPE_CHECKING:
    from ortpipe.stages.train.random_weights import random_parameters
else:
    later(__name__)

Feed = Callable[[Rows], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch: all values that the next one depends on, as named arrays."""

    epochs: int  # completed epochs
    key: str  # of the gradient model, the data and the config: sha256, hex
    tensors: Arrays  # train's, and `best/…` for those that early stopping would return now


@dataclass(frozen=True)
class Remark:
    """A sentence about how training runs, for the screen and the log."""

    text: str
    values: Mapping[str, float] = field(default_factory=dict)  # the same as numbers, for the record


@dataclass(frozen=True)
class Training:
    """The inputs of one `train` call."""

    artifact: Artifact  # the gradient model, without its preprocessing
    config: TrainConfig
    data: Data
    runtime: RuntimeConfig | None
    report: Callable[[object], None]
    start: Checkpoint | Arrays | None
    validate: Callable[[Arrays], dict[str, float]] | None  # evaluates the validation rows, if there are any
    feed: Feed  # returns the model's inputs for some rows
    whole: Artifact  # the gradient model with its preprocessing

    @property
    def before(self) -> Arrays | None:
        """The tensors that training continues from."""
        return self.start.tensors if isinstance(self.start, Checkpoint) else self.start

    def first_values(self) -> dict[str, np.ndarray]:
        """Return the initial parameters and statistics; a continued training keeps those of the first start.

        They are the model's own, or random parameters; float16 and bfloat16 parameters are trained in float32.
        """
        if self.before is not None:
            return under("initial", self.before)
        facts, arrays = self.artifact.facts, self.artifact.initializers
        parameters = {name: arrays[name] for name in facts.gradients}
        if self.config.init == "random":
            parameters = random_parameters(self.artifact.ir_model().graph, parameters, self.config.seed)
        halves = {name: array.astype(np.float32) for name, array in parameters.items() if array.dtype.itemsize == 2}
        return {**parameters, **halves, **{name: arrays[name] for name in facts.statistics}}
