"""Python's garbage collector, which costs a graph more than it gives back."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collection of reference cycles, if it is on; a decorator, too.

    A graph's values and nodes are many and stay; the collector would look through all of them again and again while
    more of them are made. (Of 9,000 nodes that took a quarter of the time.)

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
