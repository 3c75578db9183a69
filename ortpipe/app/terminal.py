"""Standard output and error: a failed write does not end a run, and no printed text controls the terminal."""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from ortpipe.app.redact import redacted

NAMES = {1: "standard output", 2: "standard error"}


# control characters except tab and line feed, and those that change the direction of text
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")


def printable(text: str) -> str:
    r"""Return text with control characters escaped.

    >>> print(printable("w\x1b[2J\u202e\rb"))
    w\x1b[2J\u202e\rb
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class TerminalStream:
    """A text stream in front of standard output or error.

    Attributes:
        forgiving: after a failed write, log it once and print nothing more; otherwise the write raises.
    """

    def __init__(self, stream: TextIO, number: int, *, forgiving: bool) -> None:
        self._stream, self._number, self.forgiving = stream, number, forgiving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text with secrets masked and control characters escaped: names in a model may hold any character."""
        start = "\r" if text.startswith("\r") else ""  # a progress bar rewrites its line
        try:
            self._stream.write(start + printable(redacted(text.removeprefix("\r"))))
        except OSError as error:
            self._failed(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Flush the buffer."""
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def give_up(self) -> None:
        """Discard the buffer and all later output, that of libraries too."""
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        with contextlib.suppress(OSError):
            self._stream.flush()

    def _failed(self, error: OSError) -> None:
        if not self.forgiving:
            raise error
        if not isinstance(error, BlockingIOError):  # a terminal in non-blocking mode accepts the next line
            self.give_up()
            _warn(f"{NAMES[self._number]} cannot be written ({error.strerror}); the run continues")


_pending: list[str] = []  # warnings before logging is set up


def _warn(text: str) -> None:
    _pending.append(text)
    if logging.getLogger().hasHandlers():
        while _pending:
            logging.getLogger(__name__).warning(_pending.pop(0))


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """Put a `TerminalStream` in front of both; failed writes to standard output raise until a run begins.

    If a descriptor was closed before the program started, it is opened on the null device. Otherwise the next file,
    such as a database, would get its number, and libraries would print into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    originals = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _stream(sys.stdout, 1), _stream(sys.stderr, 2, forgiving=True)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # it was reported already; the interpreter would report it again
                cast("TerminalStream", stream).give_up()
        sys.stdout, sys.stderr = originals


def forgive() -> None:
    """From now on failed writes do not raise: a run begins, or a sweep's job in another process."""
    sys.stdout, sys.stderr = _stream(sys.stdout, 1, forgiving=True), _stream(sys.stderr, 2, forgiving=True)
    if _pending:
        _warn(_pending.pop(0))


def _stream(stream: TextIO | TerminalStream | None, number: int, *, forgiving: bool = False) -> TextIO:
    if stream is None:
        stream = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        _pending.append(f"{NAMES[number]} is closed; the run continues")
    if not isinstance(stream, TerminalStream):
        stream = TerminalStream(stream, number, forgiving=forgiving)
    stream.forgiving = stream.forgiving or forgiving
    return cast("TextIO", stream)
