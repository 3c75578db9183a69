"""When a checkpoint is due."""

from __future__ import annotations

import time

from ortpipe.stages.train.config import CheckpointConfig


class Due:
    """Says after each epoch whether a checkpoint is due, by epochs or by the clock; results do not depend on it."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config, self._last = config, time.monotonic()

    def __call__(self, epoch: int) -> bool:
        """Take an epoch's number."""
        now, every, minutes = time.monotonic(), self._config.epochs, self._config.minutes
        due = (every is not None and epoch % every == 0) or (minutes is not None and now - self._last >= 60 * minutes)
        self._last = now if due else self._last
        return due
