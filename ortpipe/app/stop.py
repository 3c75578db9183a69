"""Ctrl-C and SIGTERM end a run at any point, even inside a library that swallows KeyboardInterrupt.

Python handles a signal between two bytecode instructions, so not while a library's native code runs. A thread reads
the signals' pipe meanwhile: PATIENCE seconds after a signal, or at a second one, it terminates the running session,
and if that does not help, the process.
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
    """A signal requested the run to stop (not a KeyboardInterrupt: scikit-learn's MLP catches that and continues)."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number  # the exit code


LISTENER = "signals"  # the name of the thread
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0  # seconds for Python to handle a signal; an epoch may take a few
GRACE = 3.0  # seconds for Python to handle it once the session is terminated

_received: list[int] = []
_handled = threading.Event()
_pipe: list[int] = []  # the end that Python writes to; a socket object would be closed at exit and wake the thread
_before_exit: list[Callable[[str], None]] = []


def listen_for_signals() -> None:
    """From now on SIGINT and SIGTERM raise Stopped, or end the process if Python cannot handle them."""
    for number in SIGNALS:
        signal.signal(number, _handle_signal)
    if not _pipe:
        read_end, write_end = socket.socketpair()
        write_end.setblocking(False)
        _pipe.append(write_end.detach())
        threading.Thread(target=_watch, args=(read_end,), daemon=True, name=LISTENER).start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a fork handles its own signals
    signal.set_wakeup_fd(_pipe[0], warn_on_full_buffer=False)


def before_the_end(write: Callable[[str], None]) -> None:
    """Set the function that is called, with the reason, before a process that does not react is ended."""
    _before_exit[:] = [write]


def _handle_signal(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    _handled.set()
    raise Stopped(number)


def _watch(pipe: socket.socket) -> None:
    """Wait for signals that Python does not handle in time."""
    while True:
        pipe.settimeout(None)
        number = pipe.recv(1)[0]
        if number not in SIGNALS:
            continue
        pipe.settimeout(PATIENCE)
        with contextlib.suppress(TimeoutError):
            pipe.recv(1)  # a second signal
        if not _handled.wait(0.1):
            session = sys.modules.get("ortpipe.runtime.session")  # not imported: no session runs
            if session is not None:
                session.terminate()
            if not _handled.wait(GRACE):
                _end(number)
        _handled.clear()


def _end(number: int) -> None:
    reason = f"ended by {signal.Signals(number).name} inside a library that did not return"
    print(f"\n{reason}", file=sys.stderr, flush=True)
    for write in _before_exit:
        with contextlib.suppress(OSError):
            write(reason)
    os._exit(128 + number)


def stop_if_asked() -> None:
    """Raise Stopped again if it was lost where Python cannot raise (in a destructor or weak reference)."""
    if _received:
        raise Stopped(_received[0])
