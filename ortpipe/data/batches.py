"""The batches of an epoch, in chunks that fit in memory."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ortpipe.data.prefetch import prefetch
from ortpipe.data.rows import Rows, RowSet

CHUNK = 32 * 2**20  # bytes of shuffled rows in memory at a time; half as many of a stream
PREFETCHED = 3  # chunks of a stream that are computed in advance
ALIGNED = 64  # bytes; the start of an aligned array is a multiple

Arrays = Mapping[str, np.ndarray]


def order(
    count: int, *, seed: int, number: int, window: int | None = None, group_sizes: Sequence[int] = ()
) -> np.ndarray:
    """Return the shuffled row numbers of one pass, which follow from the seed and the pass's number.

    With more rows than a window, first the groups are shuffled, then each run of `window` rows in that order.

    >>> order(5, seed=0, number=1).tolist() == order(5, seed=0, number=1).tolist()
    True
    """
    random = np.random.default_rng([seed, number])
    if window is None or window >= count:
        return random.permutation(count)
    groups = np.split(np.arange(count), np.cumsum(group_sizes)[:-1])
    index = np.concatenate([groups[group] for group in random.permutation(len(groups))])
    cuts = [index[first : first + window] for first in range(0, count, window)]
    return np.concatenate([cut[random.permutation(len(cut))] for cut in cuts])


class Batches:
    """Rows as a model's feeds, divided into new batches for each epoch.

    Args:
        rows: the rows; at most a window of a stream is in memory.
        feed: returns a model's feeds of some rows, name → array [N, …].
        size: rows per batch; the last batch of an epoch may be smaller.
        seed: seed of the order.
        shuffle: use a new random order in every epoch (see `order`); otherwise the rows' own order.
        single: yield each batch as a separate chunk.
        reused: write each chunk of rows in memory over the one before, whose arrays must not be read any more.

    Attributes:
        count: rows per epoch.
        size: rows per full batch, at most `count`.
        steps: batches per epoch, the partial one included.
    """

    def __init__(
        self,
        rows: RowSet,
        feed: Callable[[Rows], Arrays],
        size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        single: bool = False,
        reused: bool = False,
    ) -> None:
        self._rows, self._feed, self._seed, self._shuffle, self._single = rows, feed, seed, shuffle, single
        self._memory: dict[str, np.ndarray] | None = {} if reused and isinstance(rows, Rows) else None
        self.count = len(rows)
        self.size = min(size, self.count)
        self.steps = -(-self.count // self.size)
        window = min(self.count, rows.window or self.count)
        self._window = window if window == self.count else max(self.size, window - window % self.size)
        self._first = feed(rows.head(1))  # rejects rows that do not fit the model
        self._arrays = feed(rows) if isinstance(rows, Rows) else {}

    def epoch(self, number: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield chunks, name → array [batches, size, …]; the partial batch comes last, as a separate chunk.

        Of a stream, a second thread reads rows while a third fills a window and the last one's chunks are used.

        >>> batches = Batches(Rows({"x": np.arange(5)}, np.arange(5)), lambda rows: rows.inputs, 2, shuffle=False)
        >>> [chunk["x"].tolist() for chunk in batches.epoch(1)]
        [[[0, 1], [2, 3]], [[4]]]
        """
        batches = self._chunks(number)
        return batches if isinstance(self._rows, Rows) else prefetch(batches, PREFETCHED)

    def _chunks(self, number: int) -> Iterator[dict[str, np.ndarray]]:
        most = CHUNK if isinstance(self._rows, Rows) else CHUNK // 2
        for arrays, index in self._windows(number):
            yield from chunks(arrays, index, self.size, 0 if self._single else most, self._memory)
            if partial := len(index) % self.size:
                yield {name: array[index[-partial:]][None] for name, array in arrays.items()}

    def _windows(self, number: int) -> Iterator[tuple[Arrays, np.ndarray]]:
        """Yield the rows that are in memory at a time and their order: one window if all rows are in memory."""
        if not isinstance(self._rows, Rows):
            yield from self._streamed(number)
        elif self._shuffle:
            sizes = self._rows.group_sizes
            yield (
                self._arrays,
                order(self.count, seed=self._seed, number=number, window=self._window, group_sizes=sizes),
            )
        else:
            yield self._arrays, np.arange(self.count)

    def _streamed(self, number: int) -> Iterator[tuple[Arrays, np.ndarray]]:
        """Yield each window and its order: the same rows as by `order`, read once."""
        random, groups = np.random.default_rng([self._seed, number]), None
        if self._shuffle and self._window < self.count:
            groups = random.permutation(len(self._rows.counts))
        window = {name: np.empty((self._window, *a.shape[1:]), a.dtype) for name, a in self._first.items()}
        filled = 0
        for piece in prefetch(self._rows.read(groups)):
            arrays, taken = self._feed(piece), 0
            while taken < len(piece):
                count = min(len(piece) - taken, self._window - filled)
                for name, array in arrays.items():
                    window[name][filled : filled + count] = array[taken : taken + count]
                taken, filled = taken + count, filled + count
                if filled == self._window:
                    yield window, random.permutation(filled) if self._shuffle else np.arange(filled)
                    filled = 0
        if filled:
            yield window, random.permutation(filled) if self._shuffle else np.arange(filled)


def chunks(
    rows: Arrays, index: np.ndarray, size: int, fit: float, memory: dict[str, np.ndarray] | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the full batches of these row numbers, in chunks of at most `fit` bytes or of one batch.

    `memory` keeps the bytes that arrays are written to, by name; without it each has its own.
    """
    row_bytes = sum(array.nbytes // len(array) for array in rows.values())
    per_chunk = max(1, int(fit / max(1, row_bytes * size)))
    count = len(index) // size
    for first in range(0, count, per_chunk):
        last = min(first + per_chunk, count)
        batches = index[first * size : last * size].reshape(last - first, size)
        yield {name: _take(array, batches, name, {} if memory is None else memory) for name, array in rows.items()}


def _take(array: np.ndarray, index: np.ndarray, name: str, memory: dict[str, np.ndarray]) -> np.ndarray:
    """Return array[index], aligned so that a compiled function reads it without a copy."""
    if array.dtype.hasobject:
        return array.take(index, axis=0)  # four times as fast as array[…]
    shape = (*index.shape, *array.shape[1:])
    rows = memory.get(name)
    if rows is None or rows.shape != shape:
        size = array.itemsize * math.prod(shape)
        block = rows.base if rows is not None else None  # all that was allocated
        if block is None or block.size < size + ALIGNED:
            block = np.empty(size + ALIGNED, np.uint8)
        first = -block.ctypes.data % ALIGNED
        rows = memory[name] = block[first : first + size].view(array.dtype).reshape(shape)
    return array.take(index, axis=0, out=rows, mode="clip")  # every index is valid; mode="raise" would copy
