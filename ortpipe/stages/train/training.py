"""A run of train: its plan, the rates of its steps, its results after each epoch, and early stopping by them."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import onnx

from ortpipe import own
from ortpipe.artifact import Arrays, Artifact, Facts, in_folder
from ortpipe.data.feeds import Feed, feeds
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.errors import TrainError
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.config import LOSS, EarlyStopConfig, TrainConfig

if TYPE_CHECKING:  # for adapters, parts of batches, text, and validation rows
    from ortpipe.stages.train.checks import check_init_and_batches, check_patterns, no_batch
    from ortpipe.stages.train.preprocessing import without_preprocessing
    from ortpipe.stages.train.random_weights import random_parameters
    from ortpipe.stages.train.validation import Validation as validation
    from ortpipe.stages.train.validation import check_monitor
else:
    later(__name__)

Carried = TypeVar("Carried")


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
            return in_folder("initial", self.before)
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
    if isinstance(config.weight_decay, Mapping) or config.factors:
        check_patterns(config, facts, fixed_names)
    if config.early_stop.monitor != LOSS:
        check_monitor(config.early_stop.monitor, facts, data)


def rows_per_epoch(config: TrainConfig, rows: int) -> int:
    """Return the number of training rows that an epoch reads; raise TrainError if drop_last leaves no batch."""
    read = rows - rows % config.batch_size if config.drop_last else rows
    if not read:
        raise no_batch(config, rows)
    return read


def steps_per_epoch(config: TrainConfig, rows: int) -> int:
    """Return the number of updates per epoch; remaining batches form one more update, the partial batch another.

    >>> [steps_per_epoch(TrainConfig(batch_size=4, accumulate=k), 23) for k in (1, 2)]
    [6, 4]
    """
    size = config.batch_size * config.accumulate
    full_updates, remaining_rows = divmod(rows_per_epoch(config, rows), size)
    batches, partial = divmod(remaining_rows, config.batch_size)
    return full_updates + (batches > 0) + (partial > 0)


def rates(config: TrainConfig, steps: np.ndarray, epochs: np.ndarray | int, total: int) -> np.ndarray:
    """Return the rates of steps [steps], float64: linear warm-up, then the schedule from its start.

    Steps and their epochs are numbered from 1; `total` is the number of training steps.
    """
    times = steps
    if config.schedule_per == "epoch":
        times, total = np.full(len(steps), epochs), config.epochs
    first, last = np.maximum(times - config.warmup, 1), max(total - config.warmup, 1)
    with own.blamed(type(config.schedule), "schedule", TrainError):
        after = config.schedule(config.optimizer.lr, first, last)
    return after * np.minimum(times / (config.warmup + 1), 1)


def factor(config: TrainConfig, watched: Sequence[float]) -> float:
    """Return the schedule's factor for the next epoch's rates."""
    with own.blamed(type(config.schedule), "schedule", TrainError):
        return config.schedule.factor(watched)


@dataclass(frozen=True)
class Epoch:
    """The results of an epoch; losses are per row."""

    number: int  # counted from 1
    epochs: int
    loss: float  # mean over the epoch's steps, weighted by their rows
    validation: float | None  # None if not evaluated
    rate: float | None  # of the last step; None without rates
    steps: int  # so far
    own_steps: int  # those since this training was started or continued
    metrics: Mapping[str, float] = field(default_factory=dict)  # the monitored metric on the validation rows


@dataclass
class Losses:
    """The losses and the monitored metric so far."""

    config: EarlyStopConfig
    step: list[np.ndarray] = field(default_factory=list)  # one array [steps] per run of the epoch graph
    rate: list[np.ndarray] = field(default_factory=list)  # same
    train: list[float] = field(default_factory=list)  # per epoch
    validation: list[float] = field(default_factory=list)  # per epoch, nan if not evaluated; empty without rows
    monitor: list[float] = field(default_factory=list)  # the monitored metric, same; empty if it is the loss

    def __post_init__(self) -> None:
        seen = self.monitor or self.validation
        # The monitored value, for each validation so far, else for each epoch; lower is better.
        self.watched = [self.config.sign * v for v in seen if not np.isnan(v)] if self.validation else [*self.train]

    def add(self, train: float, metrics: Mapping[str, float] | None) -> None:
        """Append an epoch's loss and validation results: {} if the epoch is not validated, None without rows."""
        self.train.append(train)
        if metrics is None:
            self.watched.append(train)
            return
        self.validation.append(metrics.get(LOSS, np.nan))
        if self.config.monitor != LOSS:
            self.monitor.append(metrics.get(self.config.monitor, np.nan))
        if metrics:
            self.watched.append(self.config.sign * metrics[self.config.monitor])

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all results by name: [steps] or [epochs]."""
        per_step = {"losses/step": self.step, "losses/rate": self.rate}
        monitor = f"monitor/{self.config.monitor}"
        per_epoch = {"losses/train": self.train, "losses/validation": self.validation, monitor: self.monitor}
        return {
            **{name: np.concatenate(runs) for name, runs in per_step.items() if runs},
            **{name: np.array(values) for name, values in per_epoch.items() if values},
        }


class EarlyStop(Generic[Carried]):
    """Checks the monitored values (`Losses.watched`) after each epoch, with the epoch's carried values."""

    def __init__(self, config: EarlyStopConfig, values: Carried) -> None:
        self.over = False  # whether patience is exhausted
        self.best, self.best_values = -1, values  # the index of the lowest value, and the carried values there
        self._config, self._lowest, self._seen = config, np.inf, 0

    def __call__(self, watched: Sequence[float], values: Carried) -> None:
        """Process all monitored values so far; carried values are only known for the last one."""
        for place in range(self._seen, len(watched)):
            if watched[place] < self._lowest - self._config.min_delta:
                self._lowest, self.best, self.best_values = watched[place], place, values
        self._seen, patience = len(watched), self._config.patience
        self.over = patience is not None and self._seen - 1 - self.best >= patience
