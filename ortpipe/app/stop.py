"""Ctrl-C and SIGTERM end a run wherever it is, even inside a library that swallows KeyboardInterrupt.

Python hears a signal between two of its own steps, so a process that sits inside a library hears nothing. A thread
reads the signals' pipe meanwhile: after PATIENCE seconds, or at the second signal, it ends the session that runs, and
if that does not help, the process.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType


class Stopped(BaseException):
    """A signal asked the run to stop (no KeyboardInterrupt: scikit-learn's MLP catches that and goes on)."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number  # to exit with


SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0  # seconds from a signal to the next step of Python; an epoch may take some
GRACE = 3.0  # seconds from the end of a session to the next step of Python

_asked: list[int] = []
_heard = threading.Event()
_pipe: list[int] = []  # the end that Python writes to; an open socket would be closed at exit, and wake the thread
_last_words: list[Callable[[str], None]] = []


def listen_for_signals() -> None:
    """From now on, SIGINT and SIGTERM raise Stopped, and end the process where it cannot hear them."""
    for number in SIGNALS:
        signal.signal(number, _ask)
    if not _pipe:
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        _pipe.append(writing.detach())
        threading.Thread(target=_watch, args=(reading,), daemon=True, name="signals").start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a fork's signals are not ours
    signal.set_wakeup_fd(_pipe[0], warn_on_full_buffer=False)


def before_the_end(write: Callable[[str], None]) -> None:
    """Call this with the reason before a process that hears nothing is ended."""
    _last_words[:] = [write]


def _ask(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
    _heard.set()
    raise Stopped(number)


def _watch(pipe: socket.socket) -> None:
    """Wait for signals that Python does not hear."""
    while True:
        pipe.settimeout(None)
        number = pipe.recv(1)[0]
        if number not in SIGNALS:
            continue
        pipe.settimeout(PATIENCE)
        with contextlib.suppress(TimeoutError):
            pipe.recv(1)  # a second signal
        if not _heard.wait(0.1):
            session = sys.modules.get("ortpipe.runtime.session")  # not imported: nothing runs, or it would be there
            if session is not None:
                session.terminate()
            if not _heard.wait(GRACE):
                _end(number)
        _heard.clear()


def _end(number: int) -> None:
    reason = f"ended by {signal.Signals(number).name} inside a library that did not return"
    print(f"\n{reason}", file=sys.stderr, flush=True)
    for write in _last_words:
        with contextlib.suppress(OSError):
            write(reason)
    os._exit(128 + number)


def stop_if_asked() -> None:
    """Raise again what was lost where Python cannot raise (in a destructor or weak reference)."""
    if _asked:
        raise Stopped(_asked[0])
