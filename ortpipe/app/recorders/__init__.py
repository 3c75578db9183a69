"""The catalogue of recorders: each is a frozen dataclass (its config) that opens a listener for one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ortpipe.app.recorders.console import Console
from ortpipe.app.recorders.mlflow import Mlflow
from ortpipe.app.recorders.none import Nothing
from ortpipe.pipeline.events import Listener


class Recorder(Protocol):
    """A config that opens a listener when called."""

    def __call__(self, name: str, config: dict[str, Any], folder: Path, tags: dict[str, str]) -> Listener:
        """Open the record of one run; `config` is resolved, `folder` is where its files are written.

        Raises:
            TrackingError: what it records to cannot be reached; raised before any work.
        """


RECORDERS: dict[str, type] = {
    "console": Console,
    "mlflow": Mlflow,
    "none": Nothing,
}
