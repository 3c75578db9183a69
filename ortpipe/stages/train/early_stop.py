"""When to stop before the last epoch, and the best weights so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortpipe.stages.train.config import LOSS, EarlyStopConfig


class EarlyStop:
    """Watches the monitored loss.

    Attributes:
        over: the loss has not improved as many times as the patience allows.
        best_values: the carried values where it was lowest.
    """

    def __init__(self, config: EarlyStopConfig, values: Mapping[str, np.ndarray]) -> None:
        self.over, self.best_values = False, values
        self._config, self._best, self._waited, self._seen = config, np.inf, 0, 0

    def __call__(self, monitored: float, values: Mapping[str, np.ndarray]) -> None:
        """Take the next loss and the values that it is of."""
        self._seen += 1
        if monitored < self._best - self._config.min_delta:
            self._best, self._waited, self.best_values = monitored, 0, values
        else:
            self._waited += 1
        self.over = self._config.patience is not None and self._waited >= self._config.patience

    def catch_up(self, monitored: Sequence[float], values: Mapping[str, np.ndarray]) -> None:
        """Take the losses that it has not seen, of which only the last one's values are known."""
        for loss in monitored[self._seen :]:
            self(loss, values)


def trained_loss(tensors: Mapping[str, np.ndarray], config: EarlyStopConfig) -> float:
    """Return the loss of the weights that training gave: of the validation rows where there are any, else of training.

    That is the last epoch's, or with early stopping that of the epoch whose weights were kept.
    """
    validation = tensors.get("losses/validation")
    if validation is None or config.patience is None:
        return float((tensors["losses/train"] if validation is None else validation)[-1])
    watched = validation if config.monitor == LOSS else tensors[f"monitor/{config.monitor}"]
    stop = EarlyStop(config, {})
    for loss, seen in zip(validation, watched, strict=True):
        if not np.isnan(seen):
            stop(config.sign * float(seen), {LOSS: loss})
    return float(stop.best_values[LOSS])
