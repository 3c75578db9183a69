"""The cut of a batch into slices, and the sum of their results in a fixed order."""

import itertools
from collections.abc import Sequence

import numpy as np


def slice_bounds(rows: int, slices: int) -> list[tuple[int, int]]:
    """Return the first row and the end of each slice that has rows.

    The sizes of slices differ by at most one.

    >>> slice_bounds(10, 4), slice_bounds(2, 4)
    ([(0, 2), (2, 5), (5, 7), (7, 10)], [(0, 1), (1, 2)])
    """
    ends = [rows * number // slices for number in range(slices + 1)]
    return [(first, end) for first, end in itertools.pairwise(ends) if end > first]


def tree_sum(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays, added in pairs: ((a + b) + (c + d)) + …, an odd last one by itself.

    The order of additions follows from the number of parts alone, so that the sum is always byte-identical.

    >>> tree_sum([np.float32(x) for x in (1, 2, 3, 4, 5)]).tolist()
    15.0
    """
    while len(parts) > 1:
        pairs = [left + right for left, right in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs if len(parts) % 2 == 0 else [*pairs, parts[-1]]
    return np.asarray(parts[0])
