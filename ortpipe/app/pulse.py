"""A line every few seconds while a long step prints nothing else: "evaluate, 15 s so far"."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

EVERY, RAREST = 5.0, 30.0  # seconds between two lines: at first, and of a step of more than five minutes


class Pulse:
    """A thread that prints the current step and its duration on standard error after each EVERY seconds of silence."""

    def __init__(self) -> None:
        self._step, self._detail, self._began, self._heard = "", "", 0.0, 0.0
        self._closed: threading.Event | None = None
        self._printing = threading.Lock()
        if hasattr(os, "register_at_fork"):  # a fork must not copy a stream that the thread has locked
            release = self._printing.release
            os.register_at_fork(before=self._printing.acquire, after_in_parent=release, after_in_child=release)

    def step(self, name: str) -> None:
        """Name the step that begins now, or "" while a progress bar shows it."""
        self._step, self._detail, self._began = name, "", time.monotonic()
        self.heard()

    def heard(self) -> None:
        """Wait again: a line has just been printed."""
        self._heard = time.monotonic()

    def detail(self, text: str) -> None:
        """Set a text about the step's progress for the next lines, such as "8,192 rows"."""
        self._detail = text

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Print lines until the block ends; `name` is its first step."""
        outer = self._step
        self.step(name)
        if self._closed is not None:  # a run inside a command, which prints already
            yield
            return self.step(outer)
        self._closed = threading.Event()
        thread = threading.Thread(target=self._watch, args=(self._closed,), daemon=True, name="pulse")
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            thread.join()
            self._closed = None

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(EVERY / 5):
            now = time.monotonic()
            seconds = now - self._began
            if self._step and now - self._heard >= min(RAREST, max(EVERY, seconds / 10)):
                self.heard()
                texts = [self._step, f"{seconds:.0f} s so far", *filter(None, [self._detail])]
                with self._printing, contextlib.suppress(OSError, ValueError):  # ValueError: a closed stream
                    print(f"  {', '.join(texts)}", file=sys.stderr, flush=True)


PULSE = Pulse()
