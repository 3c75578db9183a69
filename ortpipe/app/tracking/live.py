"""Epochs on their way to MLflow while training goes on, so that its page shows how the losses go."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ortpipe.app.run.state import now

if TYPE_CHECKING:
    from mlflow.entities import Metric

    from ortpipe.stages.train.losses import Epoch

EVERY = 10.0  # seconds from one sending to the next
MOST = 300  # epochs in that time; where they are faster, sending would hold them up, and they all go at the end


class Epochs:
    """Gathers epochs until it is time to send them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Epoch]] = []
        self._sent, self._fast = time.monotonic(), False

    def due(self, report: object) -> list[tuple[int, Epoch]]:
        """Take in what a stage reports; return the epochs that are to be sent now, each with its time."""
        from ortpipe.stages.train.losses import Epoch

        if self._fast or not isinstance(report, Epoch):
            return []
        self._waiting.append((now(), report))
        self._fast = len(self._waiting) > MOST
        if self._fast or time.monotonic() - self._sent < EVERY:
            return []
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        return waiting


def points(epochs: list[tuple[int, Epoch]]) -> list[Metric]:
    """Return what is known of epochs as metrics, under the names that they have at the end."""
    from mlflow.entities import Metric

    found = []
    for at, epoch in epochs:
        values = {"loss/train": epoch.loss, "loss/validation": epoch.validation}
        values |= {f"monitor/{name}": value for name, value in epoch.metrics.items()}
        found += [Metric(name, value, at, epoch.number) for name, value in values.items() if value is not None]
    return found
