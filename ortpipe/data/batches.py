"""The batches of an epoch, in chunks that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.data.stream import Stream

CHUNK = 32 * 2**20  # bytes of shuffled rows that are held at a time
BUFFER = 64 * 2**20  # bytes of a stream's rows that are shuffled together


def order(count: int, *, seed: int, number: int) -> np.ndarray:
    """Return the row numbers of one pass, shuffled: they follow from the seed and the pass's number alone.

    >>> order(5, seed=0, number=1).tolist() == order(5, seed=0, number=1).tolist()
    True
    """
    return np.random.default_rng([seed, number]).permutation(count)


class Batches:
    """Rows by name, cut into batches anew for each epoch.

    Args:
        rows: name → array [N, …].
        size: rows per batch; the last batch of an epoch may be smaller.
        seed: of the order.
        shuffle: draw a new order for every epoch; otherwise rows come as they are.

    Attributes:
        count: how many rows an epoch has.
        size: rows per whole batch, at most `count`.
        steps: how many batches an epoch has, the partial one included.
    """

    def __init__(self, rows: Mapping[str, np.ndarray], size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        self._rows, self._seed, self._shuffle = dict(rows), seed, shuffle
        self.count = len(next(iter(rows.values())))
        self.size = min(size, self.count)
        self.steps = -(-self.count // self.size)

    def epoch(self, number: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield chunks, name → array [batches, size, …]; the partial batch comes last, as a chunk of its own.

        >>> [chunk["x"].tolist() for chunk in Batches({"x": np.arange(5)}, 2, shuffle=False).epoch(1)]
        [[[0, 1], [2, 3]], [[4]]]
        """
        index = order(self.count, seed=self._seed, number=number) if self._shuffle else np.arange(self.count)
        yield from chunks(self._rows, index, self.size)
        if rest := self.count % self.size:
            yield {name: array[index[-rest:]][None] for name, array in self._rows.items()}


def chunks(rows: Mapping[str, np.ndarray], index: np.ndarray, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the whole batches of these row numbers, as many at a time as fit a chunk."""
    row_bytes = sum(array.nbytes // len(array) for array in rows.values())
    per_chunk = max(1, int(CHUNK / max(1, row_bytes * size)))
    whole = len(index) // size
    for first in range(0, whole, per_chunk):
        last = min(first + per_chunk, whole)
        own = index[first * size : last * size].reshape(last - first, size)
        yield {name: array.take(own, axis=0) for name, array in rows.items()}  # four times as fast as array[own]


class StreamBatches:
    """Rows of a stream, cut into batches anew for each epoch; shuffled twice, its groups and then a buffer of rows.

    Args:
        stream: the rows.
        feed: what a model reads of some rows, name → array [N, …].
        size, seed, shuffle: as of `Batches`.

    Attributes:
        count, size, steps: as of `Batches`.
    """

    def __init__(
        self, stream: Stream, feed: Callable[[Rows], Mapping[str, np.ndarray]], size: int, *, seed: int, shuffle: bool
    ) -> None:
        self._stream, self._feed, self._seed, self._shuffle = stream, feed, seed, shuffle
        self.count = len(stream)
        self.size = min(size, self.count)
        self.steps = -(-self.count // self.size)
        self._first = feed(stream.head(1))  # rows that do not fit the model are refused here
        row_bytes = max(1, sum(array.nbytes for array in self._first.values()))
        self._capacity = min(self.count, max(self.size, BUFFER // row_bytes))

    def epoch(self, number: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield chunks as `Batches.epoch` does; what is left of a buffer comes first in the next one."""
        groups = order(self._stream.groups, seed=self._seed, number=number) if self._shuffle else None
        held = {name: np.empty((self._capacity, *a.shape[1:]), a.dtype) for name, a in self._first.items()}
        filled = refills = 0
        for piece in self._stream.pieces(groups=groups):
            arrays, taken = self._feed(piece), 0
            while taken < len(piece):
                count = min(len(piece) - taken, self._capacity - filled)
                for name, array in arrays.items():
                    held[name][filled : filled + count] = array[taken : taken + count]
                taken, filled = taken + count, filled + count
                if filled == self._capacity:
                    yield from self._batches(held, filled, number, refills)
                    filled, refills = filled % self.size, refills + 1
        whole = filled - filled % self.size
        yield from self._batches(held, filled, number, refills)
        if filled > whole:
            yield {name: array[: filled - whole][None] for name, array in held.items()}

    def _batches(
        self, held: Mapping[str, np.ndarray], filled: int, number: int, refills: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield whole batches of what is held, in a new order; move the rest to the front."""
        key = [self._seed, number, refills]
        index = np.random.default_rng(key).permutation(filled) if self._shuffle else np.arange(filled)
        rest = {name: array[index[filled - filled % self.size :]] for name, array in held.items()}
        yield from chunks(held, index, self.size)
        for name, array in rest.items():
            held[name][: len(array)] = array


def batches_of(
    rows: Rows | Stream, feed: Callable[[Rows], Mapping[str, np.ndarray]], size: int, *, seed: int, shuffle: bool
) -> Batches | StreamBatches:
    """Return the batches of rows in memory, or of a stream, with what a model reads of them."""
    if isinstance(rows, Rows):
        return Batches(feed(rows), size, seed=seed, shuffle=shuffle)
    return StreamBatches(rows, feed, size, seed=seed, shuffle=shuffle)
