"""The work of workers, and their answers."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# returns the result of slices, which depends on nothing but the work, a shared value and the slices' numbers
SliceWork = Callable[[Any, Sequence[int]], Any]
Load = Callable[[], SliceWork]  # is pickled, and called once in each worker


class Answer(NamedTuple):
    """The result of a call."""

    result: Any
    seconds: float  # that the work took


def timed(work: SliceWork, shared: Any, slices: Sequence[int]) -> Answer:
    """Call a work."""
    begun = time.perf_counter()
    return Answer(work(shared, slices), time.perf_counter() - begun)


class WorkerLostError(Exception):
    """A worker has ended without an answer."""
