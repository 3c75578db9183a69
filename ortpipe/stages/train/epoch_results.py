"""Per-epoch results of training, and early stopping by them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import numpy as np

from ortpipe.stages.train.config import LOSS, EarlyStopConfig

Values = TypeVar("Values")


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

    def first(self, epochs: int, runs: int = 0) -> Self:
        """Return the losses of the first epochs, which took `runs` runs of the epoch graph."""
        per_epoch = (values[:epochs] for values in (self.train, self.validation, self.monitor))
        return type(self)(self.config, self.step[:runs], self.rate[:runs], *per_epoch)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all results by name: [steps] or [epochs]."""
        per_step = {"losses/step": self.step, "losses/rate": self.rate}
        monitor = f"monitor/{self.config.monitor}"
        per_epoch = {"losses/train": self.train, "losses/validation": self.validation, monitor: self.monitor}
        return {
            **{name: np.concatenate(runs) for name, runs in per_step.items() if runs},
            **{name: np.array(values) for name, values in per_epoch.items() if values},
        }


class EarlyStop(Generic[Values]):
    """Checks the monitored values (`Losses.watched`) after each epoch, with the epoch's carried values."""

    def __init__(self, config: EarlyStopConfig, values: Values) -> None:
        self.over = False  # whether patience is exhausted
        self.best, self.best_values = -1, values  # the index of the lowest value, and the carried values there
        self._config, self._lowest, self._seen = config, np.inf, 0

    def __call__(self, watched: Sequence[float], values: Values) -> None:
        """Process all monitored values so far; carried values are only known for the last one."""
        for place in range(self._seen, len(watched)):
            if watched[place] < self._lowest - self._config.min_delta:
                self._lowest, self.best, self.best_values = watched[place], place, values
        self._seen, patience = len(watched), self._config.patience
        self.over = patience is not None and self._seen - 1 - self.best >= patience
