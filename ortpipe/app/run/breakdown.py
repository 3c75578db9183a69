"""Where a run's wall time goes: a table in the debug log (hydra.verbose=ortpipe)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ortpipe.pipeline.events import Event, Listener, StageFinished, StageProgressed, StageStarted
from ortpipe.stages.train.losses import Epoch
from ortpipe.timing import Stopwatch

LOG = logging.getLogger("ortpipe")


class Breakdown:
    """Measures a run from the beginning of its process: what is done beside the stages, each stage, each listener.

    Args:
        since: when the first of them began.
    """

    def __init__(self, since: float | None) -> None:
        self._watch, self._now = Stopwatch(since), "between stages"
        self._parts: Mapping[str, float] = {}  # of training
        self.lap = self._watch.lap

    def timed(self, name: str, listener: Listener) -> Listener:
        """Return the listener; its time is charged to it, and the time before to the stage that is at work."""

        def listen(event: Event) -> None:
            self.lap(self._now)
            if isinstance(event, StageStarted | StageFinished):
                self._now = event.name if isinstance(event, StageStarted) else "between stages"
            elif isinstance(event, StageProgressed) and isinstance(event.report, Epoch):
                self._parts = event.report.spent
            listener(event)
            self.lap(name)

        return listen

    def log(self) -> None:
        """Write the table."""
        spent = self._watch.seconds
        lines = [f"{'wall time':<28}{sum(spent.values()):8.3f} s"]
        for name, seconds in spent.items():
            lines.append(f"  {name:<26}{seconds:8.3f}")
            if name == "train":
                lines += [f"    {part:<24}{within:8.3f}" for part, within in self._parts.items()]
        LOG.debug("\n".join(lines))
