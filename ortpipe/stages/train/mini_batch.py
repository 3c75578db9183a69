"""The mini-batch solver: the epoch graph, its loop, its early stop and its checkpoints."""

import functools
from collections.abc import Mapping

import numpy as np

from ortpipe.artifact import under
from ortpipe.data.rows import Data
from ortpipe.stages.train.checkpoint import Checkpoint, Due, check_key, key_of, losses_of, tensors_of, values_of
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.early_stop import EarlyStop
from ortpipe.stages.train.loop import Loop
from ortpipe.stages.train.losses import PHASES, Losses
from ortpipe.stages.train.rates import rows_per_epoch
from ortpipe.stages.train.step import build_step
from ortpipe.stages.train.training import Training


def check(config: TrainConfig, data: Data) -> None:
    """Refuse rows of which no batch is left."""
    rows_per_epoch(config, len(data.train))


def solve(training: Training) -> dict[str, np.ndarray]:
    """Return train's tensors.

    Raises:
        ConvergenceError: a loss or a parameter is not finite.
        DataError: the rows do not fit the model.
        TrainError: the start is of another training.
    """
    artifact, config, data, start = training.artifact, training.config, training.data, training.start
    key = functools.cache(lambda: key_of(artifact, config, data.digest()))  # only a checkpoint needs it
    if isinstance(start, Checkpoint):
        check_key(start, key())
    step, initial, before = build_step(artifact, config), training.first_values(), training.before
    values = step.pack(step.init(initial)) if before is None else values_of(step, before)
    losses = Losses() if before is None else losses_of(before, config.early_stop.monitor)
    loop = Loop(training, step, values, losses)
    stop = EarlyStop(config.early_stop, loop.values)
    stop.catch_up(loop.monitored, loop.values)
    if before is not None and (best := under("best", before)):
        stop.best_values = values_of(step, best)

    def tensors(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            **{f"initial/{name}": array for name, array in initial.items()},
            **tensors_of(step, values),
            "losses/step": np.concatenate(loop.losses.step),
            "losses/rate": np.concatenate(loop.losses.rate),
            **loop.losses.tensors(),
        }

    def checkpoint() -> Checkpoint:
        best = {f"best/{name}": array for name, array in tensors_of(step, stop.best_values).items()}
        return Checkpoint(len(loop.losses.train), key(), {**tensors(loop.values), **best})

    PHASES.debug("graphs")
    due = Due(config.checkpoint)
    try:
        for result in () if stop.over else loop.run():
            training.report(result)
            stop.catch_up(loop.monitored, loop.values)
            if stop.over:
                break
            if due(result.number):
                training.report(checkpoint())
    except BaseException as error:  # a person or the system stops the run: keep what is done; what diverged is no state
        if not isinstance(error, Exception) and loop.back_to_whole_epochs():
            stop.catch_up(loop.monitored, loop.values)
            training.report(checkpoint())
        raise
    restored = config.early_stop.patience is not None and training.validate is not None
    return tensors(stop.best_values if restored else loop.values)
