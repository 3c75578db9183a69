"""The catalogue of recorders: each is a frozen dataclass (its config) that opens a listener for one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ortpipe.app.run.state import RunState
from ortpipe.pipeline.events import Listener
from ortpipe.settings import Catalogue

if TYPE_CHECKING:
    from ortpipe.app.tracking.parent import Parent


class Recorder(Protocol):
    """A config that opens a listener when called."""

    def __call__(self, state: RunState, config: dict[str, Any]) -> Listener:
        """Open the record of one run, whose files are written in its state's folder; `config` is resolved.

        Raises:
            TrackingError: what it records to cannot be reached; raised before any work.
        """

    def sweep(self, state: RunState) -> Parent | None:
        """Open the record of a sweep, if it has one beside those of its jobs.

        Raises:
            TrackingError: as for a run.
        """


RECORDERS: Catalogue[type] = Catalogue(
    "recorder",
    {
        "console": "ortpipe.app.recorders.console:Console",
        "mlflow": "ortpipe.app.recorders.mlflow:Mlflow",
        "none": "ortpipe.app.recorders.none:Nothing",
    },
)
