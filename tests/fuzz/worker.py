"""One graph after the other in a process of its own, which a graph may kill."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from fuzz.draw import case
from fuzz.judge import Outcome, judge
from fuzz.minimise import minimised, text


def tried(seed: int, first: str | None, among: Collection[str] | None = None) -> tuple[Outcome, list[str]]:
    """Return the outcome of a seed, and the operators of its graph."""
    warnings.simplefilter("ignore")
    drawn = case(seed, first, among)
    return judge(drawn), [node.op_type for node in drawn.model.graph.node]


def small(seed: int, first: str | None, among: Collection[str] | None = None) -> str:
    """Return the text of the smallest graph found that fails as the one of a seed does."""
    warnings.simplefilter("ignore")
    return text(*minimised(case(seed, first, among), judge), f"seed {seed}")


class Worker:
    """A process that computes, made anew after it died."""

    def __init__(self) -> None:
        self._pool = self._made()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in that process; None where that dies."""
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            self._pool = self._made()
            return None

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()

    def _made(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"))
