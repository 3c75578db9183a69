"""The batches of an epoch, in chunks that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.doors import later

if TYPE_CHECKING:
    from ortpipe.data.row_set import RowSet
    from ortpipe.data.stream_batches import Memory as memory_of_chunks
    from ortpipe.data.stream_batches import in_windows, streamed
    from ortpipe.data.stream_batches import prefetched as prefetch
else:
    later(__name__)

CHUNK = 32 * 2**20  # bytes of shuffled rows in memory at a time, or one batch; half as many of a stream
LARGE_CHUNK = 2**20  # bytes of rows whose chunks are written over each other: smaller memory is reused anyway

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
    return in_windows(random, count, window, group_sizes)


class Batches:
    """Rows as a model's feeds, divided into new batches for each epoch.

    Args:
        rows: the rows; at most a window of a stream is in memory.
        feed: returns a model's feeds of some rows, name → array [N, …].
        size: rows per batch; the last batch of an epoch may be smaller.
        seed: seed of the order.
        shuffle: use a new random order in every epoch (see `order`); otherwise the rows' own order.
        single: yield each batch as a separate chunk.
        reused: write each chunk of many rows in memory over the one before, whose arrays must not be read any more.

    Attributes:
        count: rows per epoch.
        size: rows per full batch, at most `count`.
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
        self._rows, self._feed, self._seed, self._shuffle = rows, feed, seed, shuffle
        self.count = len(rows)
        self.size = min(size, self.count)
        window = min(self.count, rows.window or self.count)
        self._window = window if window == self.count else max(self.size, window - window % self.size)
        self._first = feed(rows.head(1))  # rejects rows that do not fit the model
        self._arrays = feed(rows) if isinstance(rows, Rows) else {}
        batch_bytes = self.size * sum(array.nbytes for array in self._first.values())
        self._per_chunk = 1 if single else max(1, CHUNK // (1 if self._arrays else 2) // max(1, batch_bytes))
        is_large = sum(array.nbytes for array in self._arrays.values()) >= LARGE_CHUNK
        self._memory = memory_of_chunks() if reused and is_large else None

    def epoch(self, number: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield chunks, name → array [batches, size, …]; the partial batch comes last, as a separate chunk.

        Of a stream, a second thread reads rows while a third fills a window and the last one's chunks are used.

        >>> batches = Batches(Rows({"x": np.arange(5)}, np.arange(5)), lambda rows: rows.inputs, 2, shuffle=False)
        >>> [chunk["x"].tolist() for chunk in batches.epoch(1)]
        [[[0, 1], [2, 3]], [[4]]]
        """
        if not isinstance(self._rows, Rows):
            seed = self._seed, number
            windows = streamed(self._rows, self._feed, self._first, self._window, seed, self._shuffle)
            return prefetch(self._chunks(windows))
        if self._shuffle:
            sizes = self._rows.group_sizes
            index = order(self.count, seed=self._seed, number=number, window=self._window, group_sizes=sizes)
        else:
            index = np.arange(self.count)
        return self._chunks([(self._arrays, index)])

    def _chunks(self, windows: Iterable[tuple[Arrays, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        """Yield each window's full batches in chunks, then the partial one."""
        size, memory = self.size, self._memory
        for arrays, index in windows:
            partial = len(index) % size
            batches = index[: len(index) - partial].reshape(-1, size)
            for first in range(0, len(batches), self._per_chunk):
                rows = batches[first : first + self._per_chunk]
                yield {n: memory.take(a, rows, n) if memory else a.take(rows, axis=0) for n, a in arrays.items()}
            if partial:
                yield {name: array[index[-partial:]][None] for name, array in arrays.items()}
