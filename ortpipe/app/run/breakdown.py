"""A breakdown of a run's wall time, as a table in the debug log (hydra.verbose=ortpipe)."""

import logging
import time

from ortpipe.pipeline.events import Event, Listener, RunFailed, RunFinished, RunStarted, StageFinished, StageStarted
from ortpipe.stages.train.losses import PHASES

LOG = logging.getLogger("ortpipe")


class Stopwatch:
    """Adds the time since the last lap to a name, so that the names' times sum to the total.

    >>> watch = Stopwatch()
    >>> watch.lap("one"), watch.lap("two"), watch.lap("one")
    (None, None, None)
    >>> list(watch.seconds)
    ['one', 'two']
    """

    def __init__(self, since: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter() if since is None else since

    def lap(self, name: str) -> None:
        """Add the time since the last lap, or since the beginning, to a name."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


class Breakdown(logging.Handler):
    """Measures a run from the start of its process: each stage, each listener, and the time between stages."""

    def __init__(self, since: float | None) -> None:
        super().__init__()
        self._watch, self._now = Stopwatch(since), "between stages"
        self._phases: dict[str, Stopwatch] = {}  # by stage, as it logs them
        self.lap = self._watch.lap

    def emit(self, record: logging.LogRecord) -> None:
        """Add the time to the phase that a stage has just ended."""
        self._phases[self._now].lap(record.getMessage())

    def timed(self, name: str, listener: Listener) -> Listener:
        """Return a listener whose own time is added to `name`, and the time before to the running stage."""

        def listen(event: Event) -> None:
            self.lap(self._now)
            if isinstance(event, RunStarted) and LOG.isEnabledFor(logging.DEBUG):
                PHASES.addHandler(self)
                PHASES.setLevel(logging.DEBUG)
            elif isinstance(event, RunFinished | RunFailed):
                PHASES.removeHandler(self)
            if isinstance(event, StageStarted | StageFinished):
                self._now = event.name if isinstance(event, StageStarted) else "between stages"
                self._phases.setdefault(self._now, Stopwatch())
            listener(event)
            self.lap(name)

        return listen

    def log(self) -> None:
        """Log the table."""
        seconds_by_name = self._watch.seconds
        lines = [f"{'wall time':<28}{sum(seconds_by_name.values()):8.3f} s"]
        for name, seconds in seconds_by_name.items():
            lines.append(f"  {name:<26}{seconds:8.3f}")
            phases = self._phases[name].seconds if name in self._phases else {}
            lines += [f"    {phase:<24}{phase_seconds:8.3f}" for phase, phase_seconds in phases.items()]
        LOG.debug("\n".join(lines))
