"""The batches of an epoch, in chunks that fit in memory."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ortpipe.data.prefetch import prefetch
from ortpipe.data.rows import Rows, RowSet

CHUNK = 32 * 2**20  # bytes of shuffled rows that are held at a time; of a stream half as many
PREFETCHED = 3  # chunks of a stream that are made before they are asked for
ALIGNED = 64  # bytes at whose multiples arrays begin

Arrays = Mapping[str, np.ndarray]


def order(
    count: int, *, seed: int, number: int, window: int | None = None, group_sizes: Sequence[int] = ()
) -> np.ndarray:
    """Return the row numbers of one pass, shuffled: they follow from the seed and the pass's number alone.

    Where there are more rows than a window, the groups come in a new order, and of the rows in that order every
    `window` ones are shuffled.

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
    """Rows as a model reads them, cut into batches anew for each epoch.

    Args:
        rows: the rows; of a stream no more than its window is held.
        feed: what a model reads of some rows, name → array [N, …].
        size: rows per batch; the last batch of an epoch may be smaller.
        seed: of the order.
        shuffle: draw a new order for every epoch (see `order`); otherwise rows come as they are.
        single: give each batch as a chunk of its own.
        aligned: let the arrays of whole batches begin at multiples of 64 bytes.

    Attributes:
        count: how many rows an epoch has.
        size: rows per whole batch, at most `count`.
        steps: how many batches an epoch has, the partial one included.
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
        aligned: bool = False,
    ) -> None:
        self._rows, self._feed, self._seed, self._shuffle, self._single = rows, feed, seed, shuffle, single
        self._aligned = aligned
        self.count = len(rows)
        self.size = min(size, self.count)
        self.steps = -(-self.count // self.size)
        window = min(self.count, rows.window or self.count)
        self._window = window if window == self.count else max(self.size, window - window % self.size)
        self._first = feed(rows.head(1))  # rows that do not fit the model are refused here
        self._held = feed(rows) if isinstance(rows, Rows) else {}

    def epoch(self, number: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield chunks, name → array [batches, size, …]; the partial batch comes last, as a chunk of its own.

        Those of a stream are made ahead in a second thread: a window is filled while the last one's chunks are used.

        >>> batches = Batches(Rows({"x": np.arange(5)}, np.arange(5)), lambda rows: rows.inputs, 2, shuffle=False)
        >>> [chunk["x"].tolist() for chunk in batches.epoch(1)]
        [[[0, 1], [2, 3]], [[4]]]
        """
        made = self._chunks(number)
        return made if isinstance(self._rows, Rows) else prefetch(made, PREFETCHED)

    def _chunks(self, number: int) -> Iterator[dict[str, np.ndarray]]:
        most = CHUNK if isinstance(self._rows, Rows) else CHUNK // 2
        for arrays, index in self._windows(number):
            yield from chunks(arrays, index, self.size, 0 if self._single else most, aligned=self._aligned)
            if rest := len(index) % self.size:
                yield {name: array[index[-rest:]][None] for name, array in arrays.items()}

    def _windows(self, number: int) -> Iterator[tuple[Arrays, np.ndarray]]:
        """Yield rows that are held at a time with their order: of rows in memory all at once."""
        if not isinstance(self._rows, Rows):
            yield from self._streamed(number)
        elif self._shuffle:
            sizes = self._rows.group_sizes
            yield self._held, order(self.count, seed=self._seed, number=number, window=self._window, group_sizes=sizes)
        else:
            yield self._held, np.arange(self.count)

    def _streamed(self, number: int) -> Iterator[tuple[Arrays, np.ndarray]]:
        """Yield window after window with its order: `order`, of rows that come once."""
        random, groups = np.random.default_rng([self._seed, number]), None
        if self._shuffle and self._window < self.count:
            groups = random.permutation(len(self._rows.counts))
        window = {name: np.empty((self._window, *a.shape[1:]), a.dtype) for name, a in self._first.items()}
        filled = 0
        for piece in self._rows.read(groups):
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
    rows: Arrays, index: np.ndarray, size: int, fit: float, *, aligned: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the whole batches of these row numbers, as many at a time as fit so many bytes, or one."""
    row_bytes = sum(array.nbytes // len(array) for array in rows.values())
    per_chunk = max(1, int(fit / max(1, row_bytes * size)))
    whole = len(index) // size
    for first in range(0, whole, per_chunk):
        last = min(first + per_chunk, whole)
        batches = index[first * size : last * size].reshape(last - first, size)
        take = _taken_aligned if aligned else _taken
        yield {name: take(array, batches) for name, array in rows.items()}


def _taken(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    return array.take(index, axis=0)  # four times as fast as array[…]


def _taken_aligned(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return array[index] of numbers, beginning where a compiled function reads it without a copy."""
    shape = (*index.shape, *array.shape[1:])
    size = array.itemsize * math.prod(shape)
    memory = np.empty(size + ALIGNED, np.uint8)
    first = -memory.ctypes.data % ALIGNED
    taken = memory[first : first + size].view(array.dtype).reshape(shape)
    return array.take(index, axis=0, out=taken, mode="clip")  # every index is of a row; to raise, NumPy would copy
