"""What every solver is given: train's own arguments once they are checked, and the values that it begins with."""

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

FREE = ("epochs", "checkpoint", "early_stop")  # what may differ between the beginning and the continuation
THIRD_IS_ADDED = having("bias")


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch: everything that the next one depends on, as named arrays."""

    epochs: int  # how many are done
    key: str  # of the gradient model, the data and the config: sha256, hex
    tensors: Arrays  # train's, and `best/…` of those that would be kept if it stopped early now


@dataclass(frozen=True)
class Training:
    """One call of train; see there."""

    artifact: Artifact  # the gradient model, behind its front
    config: TrainConfig
    data: Data
    runtime: RuntimeConfig | None
    report: Callable[[object], None]
    start: Checkpoint | Arrays | None
    validate: Validation | None  # evaluates the validation rows, where there are any
    feed: Feed  # what the model reads of some rows
    digest: str  # of the gradient model as a whole

    @functools.cached_property
    def key(self) -> str:
        """What a checkpoint must share with the training that continues from it."""
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
        """Return the parameters and statistics that training began with, of which a continued one keeps the record.

        They are the model's own, or random parameters; those of halves are trained in float32.
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
        added = any(_is_added(node, place) for node, place in query.value(graph, name).uses())
        if old.ndim < 2 or (added and old.size == max(old.shape)):  # [1, K] that is added is a bias all the same
            random[name] = np.zeros_like(old) if added else np.ones_like(old)
        else:
            bound = np.sqrt(6.0 / (sum(old.shape[:2]) * math.prod(old.shape[2:])))
            random[name] = rng.uniform(-bound, bound, old.shape).astype(old.dtype)
    return random


def _is_added(node: ir.Node, place: int) -> bool:
    return node.op_type in ("Add", "Sub") or (place == 2 and node.op_type in THIRD_IS_ADDED)
