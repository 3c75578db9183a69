"""Work that a second thread does ahead: what comes next is made while what came is used."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T], count: int = 2) -> Iterator[T]:
    """Yield the items in their order; up to `count` of them are made in a second thread before they are asked for.

    An error of theirs is raised where the item would have come. The thread makes one item at a time and waits for
    nothing else, so it never keeps a process from its end; it has ended when this iterator is closed.

    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    end = object()
    pool = ThreadPoolExecutor(1, "prefetch")
    made: list[Future[T | object]] = [pool.submit(next, items, end) for _ in range(count)]
    try:
        while (item := made.pop(0).result()) is not end:
            made.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]  # it is not the end
            del item  # the caller's alone: memory holds `count` items beside it
    finally:
        pool.shutdown(cancel_futures=True)
        if hasattr(items, "close"):
            items.close()
