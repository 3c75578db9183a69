"""Record nothing; the run folder still holds everything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortpipe.pipeline.events import Event, Listener


@dataclass(frozen=True)
class Nothing:
    """No record beside the run folder."""

    def __call__(self, name: str, config: dict[str, Any], folder: Path, tags: dict[str, str]) -> Listener:
        """Return a listener that does nothing."""

        def listen(event: Event) -> None:
            return None

        return listen
