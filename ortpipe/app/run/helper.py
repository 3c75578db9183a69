"""A copy of this process that imports and works beside it, on another core."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any, Self

from ortpipe.app.stop import SIGNALS
from ortpipe.errors import OrtpipeError

DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class HelperEnded(RuntimeError):
    """A helper was killed."""

    def __init__(self) -> None:
        super().__init__("the process that works beside this one has ended")


def saves(module: str) -> bool:
    """Return whether a helper's import of a module saves time: it is not here yet, and another core is free for it."""
    can_fork = sys.platform == "linux" and hasattr(os, "fork")
    return can_fork and module not in sys.modules and len(os.sched_getaffinity(0)) > 1


def import_all(*names: str) -> None:
    """Import modules, for what needs them later."""
    for name in names:
        importlib.import_module(name)


class Helper:
    """Calls `work` in a forked process, one call after the other, once `prepare` has imported there what that needs.

    It ends with this process, however that ends, and does not hear Ctrl-C and SIGTERM itself: this process does. What
    `work` raises is raised here, what is no OrtpipeError as a RuntimeError. Arguments and results are pickled.
    """

    def __init__(self, work: Callable[..., Any], prepare: Callable[[], object]) -> None:
        self._end, theirs = Pipe()
        self._asked = False  # and no answer was taken
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with _undisturbed(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the thread that waits for signals
            self._process = os.fork()
            if self._process == 0:
                _serve(theirs, self._end, work, prepare, parent)
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def ask(self, *arguments: Any) -> None:
        """Begin a call; what an earlier one gives, which nobody waited for to the end, is dropped."""
        self._drop()
        try:
            with _undisturbed():
                self._end.send(arguments)
                self._asked = True
        except OSError as error:
            raise HelperEnded from error

    def answer(self) -> Any:
        """Wait for the end of the call; return what it gives."""
        try:
            self._end.poll(None)  # a signal may end the waiting, but not the reading
            with _undisturbed():
                result, error = self._end.recv()
                self._asked = False
        except (EOFError, OSError) as ended:
            self._asked = False
            raise HelperEnded from ended
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the process, which finishes a call that is under way."""
        self._drop()
        if self._process:
            os.kill(self._process, signal.SIGKILL)  # it waits, or imports what nobody needs any more
            os.waitpid(self._process, 0)
            self._process = 0
            self._end.close()

    def _drop(self) -> None:
        if self._asked:
            with contextlib.suppress(RuntimeError, OrtpipeError):
                self.answer()


def _serve(
    end: Connection, parent_end: Connection, work: Callable[..., Any], prepare: Callable[[], object], parent: int
) -> None:
    try:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        parent_end.close()
        with contextlib.suppress(Exception):  # `work` meets it again, and says so
            if os.getppid() == parent:
                prepare()
        while os.getppid() == parent:
            end.send(_done(work, end.recv()))
    finally:
        os._exit(0)


def _done(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    try:
        return work(*arguments), None
    except Exception as error:  # noqa: BLE001 - raised in the other process
        return None, portable(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def portable(error: Exception) -> Exception:
    """Return an error that another process can be given."""
    return error if isinstance(error, OrtpipeError) else RuntimeError(str(error).strip() or type(error).__name__)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait: a message that is sent or read in part would be the end of all later ones."""
    heard: list[int] = []
    before: dict[signal.Signals, Any] = {}
    try:
        for number in SIGNALS:
            before[number] = signal.signal(number, lambda number, frame: heard.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in heard:
            signal.raise_signal(late)
