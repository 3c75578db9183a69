"""The learning rates of steps, and the number of steps: warm-up, schedule, and the factor for plateaus."""

from collections.abc import Sequence

import numpy as np

from ortpipe import own
from ortpipe.errors import TrainError
from ortpipe.stages.train.config import TrainConfig


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


def factor(config: TrainConfig, watched: Sequence[float]) -> float:
    """Return the schedule's factor for the next epoch's rates."""
    with own.blamed(type(config.schedule), "schedule", TrainError):
        return config.schedule.factor(watched)
