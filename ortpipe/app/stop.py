"""Ctrl-C and SIGTERM end a run wherever it is, even inside a library that swallows KeyboardInterrupt."""

from __future__ import annotations

import signal
from types import FrameType

from ortpipe.pipeline.events import Event, RunFailed


class Stopped(BaseException):
    """A signal asked the run to stop (no KeyboardInterrupt: scikit-learn's MLP catches that and goes on).

    Attributes:
        code: the exit code, 128 + the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


_asked: list[int] = []


def listen_for_signals() -> None:
    """From now on, SIGINT and SIGTERM raise Stopped."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ask)


def _ask(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
    raise Stopped(number)


def stop_if_asked(event: Event) -> None:
    """Listen to a run: raise again what was lost where Python cannot raise (in a destructor or weak reference)."""
    if _asked and not isinstance(event, RunFailed):
        raise Stopped(_asked[0])
