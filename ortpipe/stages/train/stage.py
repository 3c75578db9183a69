"""train: a gradient model and rows → a trained model, its state and its losses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts, under
from ortpipe.data.batches import batches_of
from ortpipe.data.feeds import check_labels, feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import TrainError
from ortpipe.graph.compose import extract, with_parameters
from ortpipe.graph.modes import draws, for_inference, with_seeds
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.checkpoint import (
    Checkpoint,
    check_key,
    key_of,
    losses_of,
    state_of,
    tensors_of,
    values_of,
)
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.diagnose import Diagnosis
from ortpipe.stages.train.due import Due
from ortpipe.stages.train.early_stop import EarlyStop
from ortpipe.stages.train.epoch import build_epoch, with_batch_size
from ortpipe.stages.train.full_batch import minimize
from ortpipe.stages.train.initial import random_parameters
from ortpipe.stages.train.loop import Loop
from ortpipe.stages.train.optimizers import LBFGS
from ortpipe.stages.train.step import build_step
from ortpipe.stages.train.update import per_parameter
from ortpipe.stages.train.validation import Validation, check_monitor
from ortpipe.timing import Stopwatch

VERSION = 1


def train(
    artifact: Artifact,
    config: TrainConfig | None = None,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
    report: Callable[[object], None] = lambda event: None,
    start: Checkpoint | Mapping[str, np.ndarray] | None = None,
) -> Artifact:
    """Return the forward model with trained weights.

    Args:
        artifact: a gradient model with its forward outputs.
        config: optimizer, schedule, epochs, …
        data: training rows, and validation rows if there are any.
        runtime: threads.
        report: called with an `Epoch` after each epoch, and with a `Checkpoint` when one is due or a signal stops it.
        start: what to continue from: a checkpoint of this training, or the tensors of an earlier result. The epochs in
            them count: a training that is stopped anywhere and continued gives the bytes of one that is not.

    Returns:
        An artifact whose tensors are `parameter/…` and `initial/…` by parameter (and running statistic),
        `optimizer/…` by slot and parameter (`optimizer/iterate/…`: the weights themselves, where `parameter/…` are
        their averages), and the losses:
        `losses/step` and (but for lbfgs) `losses/rate` [steps], `losses/train` and `losses/validation` [epochs] (per
        row; validation is nan where it was not evaluated), and `monitor/…` [epochs] of the metric that is watched, if
        one is.
        The same artifact, config and data give the same bytes.

    Raises:
        ConvergenceError: the loss became nan or infinite.
        DataError: the rows do not fit the model.
        EvaluateError: the metric that is watched does not fit the task or has no value on the validation rows.
        TrainError: the model has no gradients or forward outputs.
    """
    config, watch = config or TrainConfig(), Stopwatch()
    facts = artifact.facts
    if not facts.gradients or not facts.outputs:
        raise TrainError(
            "train needs a gradient model with its forward outputs.",
            got=f"{len(facts.gradients)} gradients, {len(facts.outputs)} forward outputs",
            fix="Run derive first, with derive.forward_outputs=true.",
        )
    check_monitor(config.early_stop.monitor, facts, data)
    aside = data.validation
    validate = Validation(artifact, aside, config.early_stop.monitor, runtime) if aside is not None else None
    if isinstance(config.optimizer, LBFGS):
        rows = feeds(artifact.model, facts, _in_memory(data))
        before = start.tensors if isinstance(start, Checkpoint) else start
        initial = _initial(artifact, config) if before is None else under("parameter", before)
        return _trained(
            artifact, minimize(artifact, config, config.optimizer, rows, initial, validate, runtime, report)
        )
    step = build_step(artifact, config)
    key = functools.cache(lambda: key_of(artifact, config, data.digest()))  # only a checkpoint needs it
    if isinstance(start, Checkpoint):
        check_key(start, key())
    before = start.tensors if isinstance(start, Checkpoint) else start
    initial = _initial(artifact, config) if before is None else under("initial", before)
    parameters = initial if before is None else under("parameter", before)
    carried = step.pack(parameters, step.at_rest(parameters) if before is None else state_of(before, step))
    epoch, names = build_epoch(step)
    sessions = _sessions(epoch, config.seed, runtime)
    losses = None if before is None else losses_of(before, config.early_stop.monitor)

    def feed(rows: Rows) -> dict[str, np.ndarray]:
        return {k: v for k, v in feeds(artifact.model, facts, rows).items() if k in step.scanned}

    size = config.batch_size * config.accumulate
    batches = batches_of(data.train, feed, size, seed=config.seed, shuffle=config.shuffle)
    diagnose = Diagnosis(artifact, config, step, names, lambda: _sessions(epoch, config.seed, runtime), runtime)
    loop = Loop(sessions, step, names, carried, batches, config, facts.reduction or "mean", diagnose, losses, watch)
    stop = EarlyStop(config.early_stop, loop.values)
    stop.catch_up(loop.monitored, loop.values)
    if before is not None and (best := under("best", before)):
        stop.best_values = step.pack(under("parameter", best), state_of(best, step))

    def checkpoint() -> Checkpoint:
        best = {f"best/{name}": array for name, array in values_of(step, stop.best_values).items()}
        return Checkpoint(len(loop.losses.train), key(), {**tensors_of(loop, step, initial, loop.values), **best})

    watch.lap("graphs")
    due = Due(config.checkpoint)
    try:
        for result in () if stop.over else loop.run(validate):
            report(result)
            stop.catch_up(loop.monitored, loop.values)
            if stop.over:
                break
            if due(result.number):
                report(checkpoint())
    except BaseException as error:  # a person or the system stops the run: keep what is done; what diverged is no state
        if not isinstance(error, Exception) and loop.back_to_whole_epochs():
            stop.catch_up(loop.monitored, loop.values)
            report(checkpoint())
        raise
    values = stop.best_values if config.early_stop.patience is not None and data.validation is not None else loop.values
    return _trained(artifact, tensors_of(loop, step, initial, values))


def _trained(artifact: Artifact, tensors: Mapping[str, np.ndarray]) -> Artifact:
    """Return the forward model with the parameters among the tensors of a training."""
    forward = extract(artifact.model, artifact.facts.outputs)
    return artifact.next(
        "train",
        VERSION,
        model=for_inference(with_parameters(forward, under("parameter", tensors))),
        tensors={**{k: v for k, v in artifact.tensors.items() if k.startswith("source/")}, **tensors},
        loss=None,
        label=None,
        sample_weight=None,
        gradients={},
        input_gradients={},
        statistics={},
    )


def check(
    facts: Facts,
    config: TrainConfig,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
    report: Callable[[object], None] | None = None,
    start: Checkpoint | None = None,
) -> None:
    """Refuse labels that are no class, patterns that match no parameter, and a metric that cannot be watched."""
    for key, given in (("train.weight_decay", config.weight_decay or {}), ("train.factors", config.factors)):
        per_parameter(given, facts.parameters, key, 0.0)
    for part in (data.train, data.validation, data.test):
        if part is not None:
            check_labels(facts, part)
    if isinstance(config.optimizer, LBFGS):
        _in_memory(data)
    check_monitor(config.early_stop.monitor, facts, data)


def _in_memory(data: Data) -> Rows:
    """Return the training rows, all of which lbfgs reads for every step."""
    if not isinstance(data.train, Rows):
        raise TrainError(
            "lbfgs trains on all rows at once, in memory.",
            got=f"a stream of {len(data.train)} rows",
            fix="Choose another train/optimizer, or set data.source.stream=false where they fit.",
        )
    return data.train


def _sessions(epoch: onnx.ModelProto, seed: int, runtime: RuntimeConfig | None) -> Callable[[int, int], Session]:
    """Return what loads the epoch graph for an epoch's number and a batch size.

    One that draws (dropout) is loaded anew for each epoch, with seeds of that epoch: its draws follow from the
    config's seed and the epoch's number alone.
    """
    if not draws(epoch):
        load = functools.cache(lambda size: Session(with_batch_size(epoch, size), runtime))
        return lambda number, size: load(size)

    @functools.lru_cache(maxsize=2)  # whole batches, and the partial one
    def load_epoch(number: int, size: int) -> Session:
        [first] = np.random.default_rng([seed, number, size]).integers(1, 2**24, 1)
        return Session(with_batch_size(with_seeds(epoch, int(first)), size), runtime)

    return load_epoch


def _initial(artifact: Artifact, config: TrainConfig) -> dict[str, np.ndarray]:
    trained, moved = artifact.facts.gradients, artifact.facts.statistics
    own = {t.name: onnx.numpy_helper.to_array(t) for t in artifact.model.graph.initializer}
    parameters, statistics = ({name: own[name] for name in names} for names in (trained, moved))
    if config.init == "random":
        parameters = random_parameters(ir.from_proto(artifact.model).graph, parameters, config.seed)
    return {**{name: _master(array) for name, array in parameters.items()}, **statistics}


def _master(array: np.ndarray) -> np.ndarray:
    """Return a parameter of halves in float32, in which it is trained."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array
