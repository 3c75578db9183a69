"""Import a package without an optional dependency that it would load but not use."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


@contextlib.contextmanager
def hidden(name: str) -> Iterator[None]:
    """Hide a module that is not yet imported from this thread's imports; it can be imported afterwards.

    >>> with hidden("this"):
    ...     import this
    Traceback (most recent call last):
    ModuleNotFoundError: No module named 'this'
    """
    thread = threading.get_ident()

    def find_spec(module: str, path: object = None, target: object = None) -> None:
        if module == name and threading.get_ident() == thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
