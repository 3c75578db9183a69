"""Prefetching: a second thread computes the next items while the caller uses the current one."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T], count: int = 2) -> Iterator[T]:
    """Yield the items in order; a second thread computes up to `count` of them in advance.

    An item's error is raised in its place. The thread computes one item at a time and waits for nothing else, so it
    never keeps a process from ending; it has ended when this iterator is closed.

    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    end = object()
    pool = ThreadPoolExecutor(1, "prefetch")
    futures: list[Future[T | object]] = [pool.submit(next, items, end) for _ in range(count)]
    try:
        while (item := futures.pop(0).result()) is not end:
            futures.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]  # the item is not `end`
            del item  # only the caller refers to it now: memory holds at most `count` more
    finally:
        pool.shutdown(cancel_futures=True)
        if hasattr(items, "close"):
            items.close()
