"""Early stopping: stop when the monitored value has not improved for a while, and keep the best values."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from ortpipe.stages.train.config import EarlyStopConfig

Values = TypeVar("Values")


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
