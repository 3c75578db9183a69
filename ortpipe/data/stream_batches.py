"""The batches of many rows: windows of a stream, read while others are used, and memory for large chunks."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ortpipe.data.prefetch import prefetch
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows

PREFETCHED = 3  # chunks of a stream that are computed in advance
ALIGNED = 64  # bytes; the start of an aligned array is a multiple

Arrays = Mapping[str, np.ndarray]


def in_windows(random: np.random.Generator, count: int, window: int, group_sizes: Sequence[int]) -> np.ndarray:
    """Return row numbers: the groups are shuffled, then each run of `window` rows in that order."""
    groups = np.split(np.arange(count), np.cumsum(group_sizes)[:-1])
    index = np.concatenate([groups[group] for group in random.permutation(len(groups))])
    cuts = [index[first : first + window] for first in range(0, count, window)]
    return np.concatenate([cut[random.permutation(len(cut))] for cut in cuts])


def streamed(
    rows: RowSet,
    feed: Callable[[Rows], Arrays],
    example: Arrays,
    size: int,
    seed: tuple[int, int],
    shuffle: bool,
) -> Iterator[tuple[Arrays, np.ndarray]]:
    """Yield each window of `size` rows and its order: the same rows as by `order`, read once."""
    random, groups = np.random.default_rng(seed), None
    if shuffle and size < len(rows):
        groups = random.permutation(len(rows.counts))
    window = {name: np.empty((size, *array.shape[1:]), array.dtype) for name, array in example.items()}
    filled = 0
    for piece in prefetch(rows.read(groups)):
        arrays, taken = feed(piece), 0
        while taken < len(piece):
            count = min(len(piece) - taken, size - filled)
            for name, array in arrays.items():
                window[name][filled : filled + count] = array[taken : taken + count]
            taken, filled = taken + count, filled + count
            if filled == size:
                yield window, random.permutation(filled) if shuffle else np.arange(filled)
                filled = 0
    if filled:
        yield window, random.permutation(filled) if shuffle else np.arange(filled)


def prefetched(chunks: Iterator[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Yield chunks that a second thread computes in advance."""
    return prefetch(chunks, PREFETCHED)


class Memory:
    """Arrays by name, each written over the one before, and aligned so that compiled functions need no copy."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def take(self, array: np.ndarray, index: np.ndarray, name: str) -> np.ndarray:
        """Return array[index] in the memory of this name."""
        if array.dtype.hasobject:
            return array.take(index, axis=0)
        shape = (*index.shape, *array.shape[1:])
        rows = self._arrays.get(name)
        if rows is None or rows.shape != shape:
            size = array.itemsize * math.prod(shape)
            block = rows.base if rows is not None else None  # all that was allocated
            if block is None or block.size < size + ALIGNED:
                block = np.empty(size + ALIGNED, np.uint8)
            first = -block.ctypes.data % ALIGNED
            rows = self._arrays[name] = block[first : first + size].view(array.dtype).reshape(shape)
        return array.take(index, axis=0, out=rows, mode="clip")  # every index is valid; mode="raise" would copy
