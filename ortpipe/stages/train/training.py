"""The plan of a run: train's checked arguments, the inputs of its steps, and the initial values."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from ortpipe.artifact import Arrays, Artifact, Facts, under
from ortpipe.data.feeds import Feed, feeds
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.errors import TrainError
from ortpipe.graph.core import globs
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.config import LOSS, TrainConfig

if TYPE_CHECKING:  # for adapters, parts of batches, text, and validation rows
    from ortpipe.stages.train.checks import check_init_and_batches
    from ortpipe.stages.train.preprocessing import without_preprocessing
    from ortpipe.stages.train.random_weights import random_parameters
    from ortpipe.stages.train.validation import Validation as validation
    from ortpipe.stages.train.validation import check_monitor
else:
    later(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch: all values that the next one depends on, as named arrays."""

    epochs: int  # completed epochs
    key: str  # of the gradient model, the data and the config: sha256, hex
    tensors: Arrays  # train's, and `best/…` for those that early stopping would return now


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


def plan(
    artifact: Artifact,
    config: TrainConfig,
    data: Data,
    runtime: RuntimeConfig | None,
    report: Callable[[object], None],
    start: Checkpoint | Arrays | None,
) -> Training:
    """Return the plan of a run, whose steps read the results of the model's preprocessing."""
    facts, model, rest = artifact.facts, artifact.signature, artifact
    feed: Feed = functools.partial(feeds, model, facts)
    read = [value.type.tensor_type.elem_type for value in model.graph.input if value.name in facts.inputs]
    if data.train.head(1).kept or onnx.TensorProto.STRING in read:  # text and raw columns of a table
        rest, feed = without_preprocessing(artifact, data.train, feed, runtime)
    rows, watched = data.validation, config.early_stop.monitor
    validate = None if rows is None else validation(rest, rows, watched, runtime, feed)
    return Training(rest, config, data, runtime, report, start, validate, feed, artifact)


def check_settings(config: TrainConfig, facts: Facts, data: Data, fixed_names: Collection[str] = ()) -> None:
    """Reject a pattern of no trained parameter, metrics that cannot be monitored, and settings of `checks.py`."""
    if facts.adapters or any(part.link for part in facts.predictions.values()):
        check_init_and_batches(config, facts, data)
    for key, values in (("weight_decay", config.weight_decay), ("factors", config.factors)):
        if isinstance(values, Mapping):
            globs.select(list(values), facts.parameters, TrainError, key, fixed_names)
    if config.early_stop.monitor != LOSS:
        check_monitor(config.early_stop.monitor, facts, data)
