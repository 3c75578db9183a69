"""The catalogue of recorders: each is a frozen dataclass (its config) that opens the record of a run or a sweep."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ortpipe.app.run.record import RunRecord
from ortpipe.pipeline.events import Event
from ortpipe.settings import Catalogue, Config


class Recording:
    """The record of a run, or of a sweep and its jobs. This base class records nothing.

    Attributes:
        run_id: the record's id.
        summary: lines to print at the end: the record's name, and how to open it.
    """

    run_id: str | None = None
    summary: Mapping[str, str] = MappingProxyType({})

    def __call__(self, event: Event) -> None:
        """Handle an event."""

    def check(self) -> None:
        """Raise, at the end of a finished run or sweep, if a configured part could not be recorded."""

    def close(self, best: RunRecord | None) -> None:
        """Record the end of a sweep, its best job, and the figures drawn for that job."""

    def withdraw(self) -> None:
        """Delete a sweep's record because no job started."""


class Recorder(Config):
    """A config that opens records; raises TrackingError before any work if its destination is unreachable."""

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> Recording:
        """Open the record of a run, whose files are in its folder; `config` is resolved."""
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
