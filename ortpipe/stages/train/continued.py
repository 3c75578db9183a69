"""Trainings before they run: the epochs in common with a stored, shorter one, and the learning rates."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortpipe.artifact import Arrays
from ortpipe.data.rows import Data
from ortpipe.errors import ConfigError, TrainError
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.schedules import Schedule
from ortpipe.stages.train.training import factor, rates, steps_per_epoch

ANY_STEPS = 8  # per epoch, to compare schedules without rows
DRAWN = 100_000  # the most steps that `planned` returns


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
    return done if _same_rates(config, epochs, steps_per_epoch(config, len(data.train)), done) else 0


def restarts(config: TrainConfig, epochs: int, more: int) -> str | None:
    """Return why a training with `more` epochs cannot continue from one with `epochs`; None if it can.

    This needs no rows: `shared_epochs` also checks the stored result.
    """
    if config.optimizer.solver != "minibatch":
        return f"{config.optimizer.solver} has no state to continue from"
    if epochs % config.validate_every:
        return f"the last of {epochs} epochs has a validation that longer trainings lack"
    if not _same_rates(dataclasses.replace(config, epochs=more), epochs, ANY_STEPS, epochs):
        return "the schedule depends on the total number of epochs"
    return None


def _same_rates(config: TrainConfig, epochs: int, steps: int, done: int) -> bool:
    """Return whether the first `done` epochs have the same rates in a training with `epochs` as with the config's."""

    def rates_of(config: TrainConfig, number: int) -> np.ndarray:
        return rates(config, np.arange(1, steps + 1) + steps * (number - 1), number, steps * config.epochs)

    shorter = dataclasses.replace(config, epochs=epochs)
    return all(np.array_equal(rates_of(shorter, number), rates_of(config, number)) for number in range(1, done + 1))


def state_after(epochs: int, tensors: Arrays) -> Arrays:
    """Return train's tensors without the losses and monitored metrics of later epochs."""
    ran = len(tensors["losses/train"])
    series = {name for name in tensors if name.startswith(("losses/", "monitor/"))}
    return {name: a[: len(a) // ran * epochs] if name in series else a for name, a in tensors.items()}


def states_of(config: TrainConfig) -> tuple[int, ...]:
    """Return the epochs before the last whose results the store also keeps, in order."""
    if isinstance(config.states, int):
        return tuple(range(config.states, config.epochs, config.states))
    return tuple(sorted({*(config.states or ())} - {config.epochs}))


def check_states(config: TrainConfig, data: Data) -> None:
    """Raise TrainError if training for more epochs could not continue from a result that the settings ask for."""
    states = states_of(config)
    if config.early_stop.patience is not None:
        rule = "With early stopping, a training of fewer epochs returns the weights of an earlier epoch."
        raise TrainError(
            rule, key="states", got="early_stop.patience", fix="Set {key}=null or {at}early_stop.patience=null."
        )
    if late := [epochs for epochs in states if epochs > config.epochs]:
        rule, fix = "{key} must be at most {at}epochs.", "Leave it out, or raise {at}epochs."
        raise TrainError(rule, key="states", got=f"{late[0]} of {config.epochs}", fix=fix)
    if unshared := [epochs for epochs in states if not shared_epochs(config, epochs, {}, data)]:
        raise TrainError(
            "In {key}, training must have the state of a training of only so many epochs.",
            key="states",
            got=f"{unshared[0]}, of {config.epochs} epochs",
            fix="Choose a {@train/schedule} that does not depend on {at}epochs, an optimizer other than lbfgs, and "
            "multiples of {at}validate_every.",
        )


def planned(config: TrainConfig, rows: int, *, validated: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return step numbers [S] and rates [S] of a whole training in which the monitored value never improves.

    S is the number of steps; above 100,000, evenly spaced steps are chosen. Raise ConfigError for an optimizer without
    rates.
    """
    if config.optimizer.solver != "minibatch":
        raise ConfigError(
            "A schedule needs an optimizer with learning rates.",
            got=f"{config.optimizer.solver}, which has none",
            fix="Choose another {@train/optimizer}.",
        )
    per_epoch = steps_per_epoch(config, rows)
    total = config.epochs * per_epoch
    steps = np.unique(np.linspace(1, total, min(total, DRAWN)).astype(np.int64))
    epochs = (steps - 1) // per_epoch + 1
    planned_rates = rates(config, steps, epochs, total)
    if watches(config.schedule):
        seen, at = np.unique((epochs - 1) // (config.validate_every if validated else 1), return_inverse=True)
        planned_rates = planned_rates * np.array([factor(config, [1.0] * int(count)) for count in seen])[at]
    return steps, planned_rates


def watches(schedule: Schedule) -> bool:
    """Return whether a schedule depends on monitored values."""
    return type(schedule).factor is not Schedule.factor
