"""Record nothing; the run folder still holds everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortpipe.app.run.state import RunState
from ortpipe.pipeline.events import Event, Listener
from ortpipe.settings import Config


@dataclass(frozen=True)
class Nothing(Config):
    """No record beside the run folder."""

    def __call__(self, state: RunState, config: dict[str, Any]) -> Listener:
        """Return a listener that does nothing."""

        def listen(event: Event) -> None:
            return None

        return listen

    def sweep(self, state: RunState) -> None:
        """A sweep has no record of its own beside its folder."""
