"""The inputs of a solver: train's checked arguments and the initial values."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe import own
from ortpipe.artifact import Arrays, Artifact, under
from ortpipe.data.rows import Data
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having
from ortpipe.hashing import digest_of
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.front import Feed
from ortpipe.stages.train.validation import Validation

FREE = ("epochs", "checkpoint", "early_stop")  # settings that a continuation may change
THIRD_IS_ADDED = having("bias")


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch: all values that the next one depends on, as named arrays."""

    epochs: int  # completed epochs
    key: str  # of the gradient model, the data and the config: sha256, hex
    tensors: Arrays  # train's, and `best/…` for those that early stopping would return now


@dataclass(frozen=True)
class Training:
    """The inputs of one `train` call."""

    artifact: Artifact  # the gradient model, without its front
    config: TrainConfig
    data: Data
    runtime: RuntimeConfig | None
    report: Callable[[object], None]
    start: Checkpoint | Arrays | None
    validate: Validation | None  # evaluates the validation rows, if there are any
    feed: Feed  # returns the model's inputs for some rows
    digest: str  # of the whole gradient model

    @functools.cached_property
    def key(self) -> str:
        """The key that a checkpoint and the training that continues from it must share."""
        settings = {name: repr(value) for name, value in sorted(vars(self.config).items()) if name not in FREE}
        settings["monitor"] = self.config.early_stop.monitor
        for part in map(type, (self.config.optimizer, self.config.schedule)):
            if own.is_own(part):
                settings[own.path_of(part)] = own.code(part)
        return digest_of("checkpoint", self.digest, self.data.digest(), settings)

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


def random_parameters(graph: ir.Graph, parameters: Arrays, seed: int) -> dict[str, np.ndarray]:
    """Return new weights of the same shapes and types.

    Matrices and kernels are Glorot-uniform, U(±√(6 / (fan_in + fan_out))) (Glorot and Bengio, 2010), as in
    scikit-learn's MLP; vectors and scalars that are added are 0, those that scale are 1.
    """
    rng, random = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, old in parameters.items():
        added = any(
            node.op_type in ("Add", "Sub") or (place == 2 and node.op_type in THIRD_IS_ADDED)
            for node, place in query.value(graph, name).uses()
        )
        if old.ndim < 2 or (added and old.size == max(old.shape)):  # a [1, K] array that is added is also a bias
            random[name] = np.zeros_like(old) if added else np.ones_like(old)
        else:
            bound = np.sqrt(6.0 / (sum(old.shape[:2]) * math.prod(old.shape[2:])))
            random[name] = rng.uniform(-bound, bound, old.shape).astype(old.dtype)
    return random
