"""Import a package without an optional dependency that it would load but not use."""

import contextlib
import sys
import threading
from collections.abc import Iterator


class _Finder:
    """A finder that hides a module from the thread that made it."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextlib.contextmanager
def hidden(name: str) -> Iterator[None]:
    """Hide a module that is not yet imported from this thread's imports; it can be imported afterwards.

    >>> with hidden("this"):
    ...     import this
    Traceback (most recent call last):
    ModuleNotFoundError: No module named 'this'
    """
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
