"""The learning rates of a whole training, before it runs."""

import numpy as np

from ortpipe.errors import ConfigError
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.schedules import Schedule
from ortpipe.stages.train.training import factor, rates, steps_per_epoch

DRAWN = 100_000  # the most steps that `planned` returns


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
