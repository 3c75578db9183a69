"""The catalogue of recorders: each is a frozen dataclass (its config) that opens the record of a run or a sweep."""

from collections.abc import Mapping
from typing import Any, Protocol

from ortpipe.app.run.record import RunRecord
from ortpipe.pipeline.events import Event
from ortpipe.settings import Catalogue


class Recording(Protocol):
    """The record of one run, which listens to it."""

    @property
    def run_id(self) -> str | None:
        """Return the id that the run has there."""

    @property
    def summary(self) -> Mapping[str, str]:
        """Return what its user reads at the end: what it is called, and how to see it."""

    def __call__(self, event: Event) -> None:
        """Listen."""


class SweepRecording(Protocol):
    """The record of a sweep, beside those of its jobs."""

    run_id: str

    def close(self, best: str | None) -> None:
        """Record how the sweep ended, and which run was the best job's."""

    def withdraw(self) -> None:
        """Take the record back: no job began."""


class Recorder(Protocol):
    """A config that opens records."""

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> Recording:
        """Open the record of one run, whose files are written in its folder; `config` is resolved.

        Raises:
            TrackingError: what it records to cannot be reached; raised before any work.
        """

    def open_sweep(self, record: RunRecord) -> SweepRecording | None:
        """Open the record of a sweep, if it has one beside those of its jobs.

        Raises:
            TrackingError: as for a run.
        """


RECORDERS: Catalogue[type] = Catalogue(
    "recorder",
    {
        "console": "ortpipe.app.tracking.recorders.console:Console",
        "mlflow": "ortpipe.app.tracking.recorders.mlflow:Mlflow",
        "none": "ortpipe.app.tracking.recorders.none:Nothing",
    },
)
