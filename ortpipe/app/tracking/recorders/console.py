"""Record to the terminal: the config as flat keys, a line per stage, the metrics."""

from dataclasses import dataclass
from typing import Any

from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking.recorders.none import NoRecording
from ortpipe.pipeline.events import Event, RunStarted, StageFinished
from ortpipe.pipeline.flatten import flatten
from ortpipe.settings import Config


class Lines(NoRecording):
    """Prints a run to standard output."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, RunStarted):
            for key, value in flatten(self._config).items():
                print(f"{key}={value}")
        elif isinstance(event, StageFinished):
            print(f"{event.name}: {event.artifact.node_count} nodes, {event.seconds:.2f} s, {event.output}", flush=True)


@dataclass(frozen=True)
class Console(Config):
    """Lines on standard output."""

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> Lines:
        """Return what prints."""
        return Lines(config)

    def open_sweep(self, record: RunRecord) -> None:
        """A sweep has no record of its own beside its folder."""
