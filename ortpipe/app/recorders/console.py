"""Record to the terminal: the config as flat keys, a line per stage, the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortpipe.app.run.state import RunState
from ortpipe.pipeline.events import Event, Listener, RunStarted, StageFinished
from ortpipe.pipeline.flatten import flatten
from ortpipe.settings import Config


@dataclass(frozen=True)
class Console(Config):
    """Lines on standard output."""

    def __call__(self, state: RunState, config: dict[str, Any]) -> Listener:
        """Return a listener that prints."""

        def listen(event: Event) -> None:
            if isinstance(event, RunStarted):
                for key, value in flatten(config).items():
                    print(f"{key}={value}")
            elif isinstance(event, StageFinished):
                nodes = len(event.artifact.model.graph.node)
                print(
                    f"{event.name}: {nodes} nodes, {event.seconds:.2f} s, {event.output}",
                    flush=True,
                )

        return listen

    def sweep(self, state: RunState) -> None:
        """A sweep has no record of its own beside its folder."""
