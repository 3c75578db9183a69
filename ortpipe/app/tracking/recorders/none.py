"""Record nothing; the run folder still holds everything."""

from dataclasses import dataclass
from typing import Any

from ortpipe.app.run.record import RunRecord
from ortpipe.pipeline.events import Event
from ortpipe.settings import Config


class NoRecording:
    """Listens to a run and does nothing."""

    run_id = None

    @property
    def summary(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def __call__(self, event: Event) -> None:
        """Listen."""


@dataclass(frozen=True)
class Nothing(Config):
    """No record beside the run folder."""

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> NoRecording:
        """Return what records nothing."""
        return NoRecording()

    def open_sweep(self, record: RunRecord) -> None:
        """A sweep has no record of its own beside its folder."""
