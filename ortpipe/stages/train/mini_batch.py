"""Training batch by batch: the epoch graph, its loop, its early stop and its checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import onnx

from ortpipe.artifact import Artifact, under
from ortpipe.data.batches import batches_of
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.graph.modes import draws, with_seeds
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
from ortpipe.stages.train.initial import first_values
from ortpipe.stages.train.loop import Loop
from ortpipe.stages.train.step import build_step
from ortpipe.stages.train.validation import Validation
from ortpipe.timing import Stopwatch


def descend(
    artifact: Artifact,
    config: TrainConfig,
    data: Data,
    validate: Validation | None,
    runtime: RuntimeConfig | None,
    report: Callable[[object], None],
    start: Checkpoint | Mapping[str, np.ndarray] | None,
    watch: Stopwatch,
) -> dict[str, np.ndarray]:
    """Return train's tensors; the arguments are train's, and what evaluates the validation rows.

    Raises:
        ConvergenceError: a loss or a parameter is not finite.
        DataError: the rows do not fit the model.
        TrainError: the start is of another training.
    """
    step, facts, model = build_step(artifact, config), artifact.facts, artifact.model
    key = functools.cache(lambda: key_of(artifact, config, data.digest()))  # only a checkpoint needs it
    if isinstance(start, Checkpoint):
        check_key(start, key())
    before = start.tensors if isinstance(start, Checkpoint) else start
    initial = first_values(artifact, config) if before is None else under("initial", before)
    parameters = initial if before is None else under("parameter", before)
    carried = step.pack(parameters, step.at_rest(parameters) if before is None else state_of(before, step))
    epoch, names = build_epoch(step)
    sessions = sessions_of(epoch, config.seed, runtime)
    losses = None if before is None else losses_of(before, config.early_stop.monitor)

    def feed(rows: Rows) -> dict[str, np.ndarray]:
        return {k: v for k, v in feeds(model, facts, rows).items() if k in step.scanned}

    size = config.batch_size * config.accumulate
    batches = batches_of(data.train, feed, size, seed=config.seed, shuffle=config.shuffle)
    diagnose = Diagnosis(artifact, config, step, names, lambda: sessions_of(epoch, config.seed, runtime), runtime)
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
    return tensors_of(loop, step, initial, values)


def sessions_of(epoch: onnx.ModelProto, seed: int, runtime: RuntimeConfig | None) -> Callable[[int, int], Session]:
    """Return what loads the epoch graph for an epoch's number and a batch size.

    One that draws (dropout) is loaded anew for each epoch, with seeds of that epoch: its draws follow from the
    config's seed and the epoch's number alone.
    """
    sized = functools.cache(lambda size: with_batch_size(epoch, size))
    if not draws(epoch):
        load = functools.cache(lambda size: Session(sized(size), runtime))
        return lambda number, size: load(size)

    @functools.lru_cache(maxsize=2)  # whole batches, and the partial one
    def load_epoch(number: int, size: int) -> Session:
        [first] = np.random.default_rng([seed, number, size]).integers(1, 2**24, 1)
        return Session(with_seeds(sized(size), int(first)), runtime)

    return load_epoch
