"""Record to the terminal: the config as flat keys, a line per stage, the metrics."""

from dataclasses import dataclass
from typing import Any

from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking.recorders import Recorder, Recording
from ortpipe.pipeline.events import Event, RunStarted, StageFinished
from ortpipe.pipeline.flatten import flatten


@dataclass(frozen=True)
class Console(Recorder):
    """Print lines to standard output."""

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> Recording:
        """Return a recording that prints."""
        return Lines(config)


class Lines(Recording):
    """Prints a run to standard output."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, RunStarted):
            print(*(f"{key}={value}" for key, value in flatten(self._config).items()), sep="\n")
        elif isinstance(event, StageFinished):
            nodes = len(event.artifact.signature.graph.node)
            print(f"{event.name}: {nodes} nodes, {event.seconds:.2f} s, {event.output}", flush=True)
