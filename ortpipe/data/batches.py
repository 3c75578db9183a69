"""The batches of an epoch, in chunks that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

CHUNK = 32 * 2**20  # bytes of shuffled rows that are held at a time


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
        for index in self._indices(number):
            yield {name: array[index] for name, array in self._rows.items()}

    def _indices(self, number: int) -> Iterator[np.ndarray]:
        """Yield row numbers [batches, size], as many batches as fit a chunk."""
        index = order(self.count, seed=self._seed, number=number) if self._shuffle else np.arange(self.count)
        row_bytes = sum(array.nbytes for array in self._rows.values()) / self.count
        per_chunk = max(1, int(CHUNK / max(1.0, row_bytes * self.size)))
        whole = self.count // self.size
        for first in range(0, whole, per_chunk):
            last = min(first + per_chunk, whole)
            yield index[first * self.size : last * self.size].reshape(last - first, self.size)
        if self.count % self.size:
            yield index[whole * self.size :].reshape(1, -1)
