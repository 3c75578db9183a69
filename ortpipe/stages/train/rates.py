"""The learning rates of steps, and the number of steps: warm-up, schedule, and the factor for plateaus."""

from collections.abc import Sequence

import numpy as np

from ortpipe import own
from ortpipe.errors import ConfigError, TrainError
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.schedules import Schedule

DRAWN = 100_000  # the most steps that `planned` returns


def rows_per_epoch(config: TrainConfig, rows: int) -> int:
    """Return the number of training rows that an epoch reads; raise TrainError if drop_last leaves no batch."""
    read = rows - rows % config.batch_size if config.drop_last else rows
    if not read:
        raise TrainError(
            "{at}drop_last must leave at least one batch.",
            got=f"{rows} rows, batches of {config.batch_size}",
            fix=f"Set {{at}}batch_size={rows} or less, or {{at}}drop_last=false.",
        )
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


def factor(config: TrainConfig, watched: Sequence[float]) -> float:
    """Return the schedule's factor for the next epoch's rates."""
    with own.blamed(type(config.schedule), "schedule", TrainError):
        return config.schedule.factor(watched)


def watches(schedule: Schedule) -> bool:
    """Return whether a schedule depends on monitored values."""
    return type(schedule).factor is not Schedule.factor
