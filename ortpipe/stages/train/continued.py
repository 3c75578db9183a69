"""The epochs that a longer training has in common with a stored, shorter one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortpipe.artifact import Arrays
from ortpipe.data.rows import Data
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.rates import rates, steps_per_epoch


def shared_epochs(config: TrainConfig, epochs: int, record: Mapping[str, Any], data: Data) -> int:
    """Return after how many epochs a result of a shorter training has the state of this one; 0 if it never has.

    Both have the same state after the same epochs, unless the schedule's rates depend on the number of all epochs, or
    the shorter training validated its last epoch only because it was the last. With early stopping on validation rows,
    the result has the state after the epoch whose weights were kept.

    Args:
        config: the settings of the longer training.
        epochs: the number of epochs of the shorter one; its other settings are the same.
        record: train's line in the lineage of its result.
        data: the rows of both.
    """
    if config.optimizer.solver != "minibatch":
        return 0
    validated, stopped = data.validation is not None, record.get("early_stop")
    done = epochs if stopped is None else int(stopped["epoch" if validated else "epochs"])
    if validated and done % config.validate_every:
        return 0
    shorter, steps = dataclasses.replace(config, epochs=epochs), steps_per_epoch(config, len(data.train))

    def rates_of(config: TrainConfig, number: int) -> np.ndarray:
        return rates(config, np.arange(1, steps + 1) + steps * (number - 1), number, steps * config.epochs)

    numbers = range(1, done + 1)
    return done if all(np.array_equal(rates_of(shorter, n), rates_of(config, n)) for n in numbers) else 0


def state_after(epochs: int, tensors: Arrays) -> Arrays:
    """Return train's tensors without the losses and monitored metrics of later epochs."""
    ran = len(tensors["losses/train"])
    series = {name for name in tensors if name.startswith(("losses/", "monitor/"))}
    return {name: a[: len(a) // ran * epochs] if name in series else a for name, a in tensors.items()}
