"""The catalogue of recorders: each is a frozen dataclass (its config) that opens the record of a run or a sweep."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ortpipe.app.run.record import RunRecord
from ortpipe.pipeline.events import Event
from ortpipe.settings import Catalogue, Config


class Recording:
    """The record of a run, which listens to it, or of a sweep beside those of its jobs; this one is none.

    Attributes:
        run_id: the id that it has there.
        summary: what its user reads at the end: what it is called, and how to see it.
    """

    run_id: str | None = None
    summary: Mapping[str, str] = MappingProxyType({})

    def __call__(self, event: Event) -> None:
        """Listen."""

    def check(self) -> None:
        """Raise, at the end of a run or sweep that finished, if it lacks what its config asked the recorder for."""

    def close(self, best: RunRecord | None) -> None:
        """Record how a sweep ended, which job was the best, and what was drawn of that one since it ended."""

    def withdraw(self) -> None:
        """Take a sweep's record back: no job began."""


class Recorder(Config):
    """A config that opens records; a TrackingError before any work says that what it records to cannot be reached."""

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> Recording:
        """Open the record of one run, whose files are written in its folder; `config` is resolved."""
        return Recording()

    def open_sweep(self, record: RunRecord) -> Recording:
        """Open the record of a sweep."""
        return Recording()


RECORDERS: Catalogue[type] = Catalogue(
    "recorder",
    {
        "console": "ortpipe.app.tracking.recorders.console:Console",
        "mlflow": "ortpipe.app.tracking.recorders.mlflow:Mlflow",
        "none": "ortpipe.app.tracking.recorders.none:Nothing",
    },
)
