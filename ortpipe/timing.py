"""Where wall time goes."""

from __future__ import annotations

import time

BEGAN = time.perf_counter()  # the package imports this before anything else


class Stopwatch:
    """Charges the time since the last lap to a name, so that nothing is left out.

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
        """Charge the time since the last lap, or since the beginning."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
