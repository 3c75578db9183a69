"""The protocols of workers and their work."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol


class SliceWork(Protocol):
    """The work of a worker. It is pickled; it may load its model on the first call."""

    def __call__(self, shared: Any, slices: Sequence[int]) -> Any:
        """Return the result of slices, which may depend on nothing but the work, `shared` and their numbers."""


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


class Worker(Protocol):
    """A process that runs one call of a work at a time."""

    name: str
    ready: Future[Any]  # done once it can be given slices; a cluster may have room for it later only

    def submit(self, shared: Any, slices: Sequence[int]) -> Future[Answer]:
        """Start a call; its future raises WorkerLostError if the worker ends without an answer."""

    def kill(self) -> None:
        """End the worker at once."""


class Transport(Protocol):
    """Starts workers with a work."""

    def capacity(self) -> int:
        """Return how many workers the machine or the cluster has room for now."""

    def start(self, number: int) -> Worker:
        """Return a new worker."""

    def share(self, value: Any) -> Any:
        """Return a value in the form in which `submit` takes it, so that it is serialized once for all workers."""

    def close(self) -> None:
        """Free memory, after all workers have ended."""
