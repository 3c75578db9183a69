"""Standard output and error: what cannot be printed ends no run, and no text commands the terminal."""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from ortpipe.app.redact import redacted

NAMES = {1: "standard output", 2: "standard error"}


# control characters but for tab and line feed, and what turns the direction of writing
COMMANDING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")


def printable(text: str) -> str:
    r"""Return text with an escape for each character that a terminal acts on.

    >>> print(printable("w\x1b[2J\u202e\rb"))
    w\x1b[2J\u202e\rb
    """
    return COMMANDING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class TerminalStream:
    """A stream of text in front of standard output or error.

    Attributes:
        forgiving: where a write fails, nothing more is printed, and the log says so once; else it raises.
    """

    def __init__(self, stream: TextIO, number: int, *, forgiving: bool) -> None:
        self._stream, self._number, self.forgiving = stream, number, forgiving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, but for secrets and what commands a terminal: names in models of others may hold anything."""
        start = "\r" if text.startswith("\r") else ""  # a progress bar begins its line again
        try:
            self._stream.write(start + printable(redacted(text.removeprefix("\r"))))
        except OSError as error:
            self._failed(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Write what is held back."""
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def give_up(self) -> None:
        """Send all that comes, from libraries too, and what is held back, to nowhere."""
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        with contextlib.suppress(OSError):
            self._stream.flush()

    def _failed(self, error: OSError) -> None:
        if not self.forgiving:
            raise error
        if not isinstance(error, BlockingIOError):  # a terminal that others made non-blocking takes the next line
            self.give_up()
            _warn(f"{NAMES[self._number]} cannot be written ({error.strerror}); the run goes on")


_unsaid: list[str] = []  # until there is a log


def _warn(text: str) -> None:
    _unsaid.append(text)
    if logging.getLogger().hasHandlers():
        while _unsaid:
            logging.getLogger(__name__).warning(_unsaid.pop(0))


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """Put a `TerminalStream` in front of both: standard error forgives, standard output only once a run begins.

    A number that was closed before the program began is opened on nothing: else the next file, such as a database,
    would get it, and what libraries print would go into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _stream(sys.stdout, 1), _stream(sys.stderr, 2, forgiving=True)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # an error was told already; the interpreter would tell another
                cast("TerminalStream", stream).give_up()
        sys.stdout, sys.stderr = before


def forgive() -> None:
    """From now on, as a run begins, nothing that cannot be printed raises; in another process's job too."""
    sys.stdout, sys.stderr = _stream(sys.stdout, 1, forgiving=True), _stream(sys.stderr, 2, forgiving=True)
    if _unsaid:
        _warn(_unsaid.pop(0))


def _stream(stream: TextIO | TerminalStream | None, number: int, *, forgiving: bool = False) -> TextIO:
    if stream is None:
        stream = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        _unsaid.append(f"{NAMES[number]} is closed; the run goes on")
    if not isinstance(stream, TerminalStream):
        stream = TerminalStream(stream, number, forgiving=forgiving)
    stream.forgiving = stream.forgiving or forgiving
    return cast("TextIO", stream)
