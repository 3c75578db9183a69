"""The cut of a batch into slices, and the sum of their results in a fixed order."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

Tree = tuple[int, int]  # the first slice of a subtree of the sum, and the end
Values = list[np.ndarray]


def slice_bounds(rows: int, slices: int) -> list[tuple[int, int]]:
    """Return the first row and the end of each slice that has rows; their sizes differ by at most one.

    >>> slice_bounds(10, 4), slice_bounds(2, 4)
    ([(0, 2), (2, 5), (5, 7), (7, 10)], [(0, 1), (1, 2)])
    """
    count = min(rows, slices)
    return list(itertools.pairwise(rows * number // count for number in range(count + 1)))


def subtree_sums(of_slice: Callable[[int], Values], numbers: Collection[int], count: int) -> dict[Tree, Values]:
    """Return the sums of the largest subtrees with these slices of `count`; see `tree_sum`.

    >>> subtree_sums(lambda number: [np.ones(1)], [0, 1, 4], 5)
    {(0, 2): [array([2.])], (4, 5): [array([1.])]}
    """

    def values_of(tree: Tree) -> Values | None:
        return of_slice(tree[0]) if tree[1] - tree[0] == 1 else None

    return {tree: _sum(tree, values_of) for tree in subtrees(numbers, (0, count))}


def subtrees(numbers: Collection[int], tree: Tree) -> Iterator[Tree]:
    """Yield the largest subtrees of a tree with these slices only."""
    if {*range(*tree)} <= {*numbers}:
        yield tree
    elif tree[1] - tree[0] > 1:
        for half in _halves(tree):
            yield from subtrees(numbers, half)


def tree_sum(sums: Mapping[Tree, Values], count: int) -> Values:
    """Return the sums of the values of `count` slices from sums of subtrees.

    Slices are added in pairs: ((a + b) + (c + d)) + …, an odd last one by itself. This order follows from the number of
    slices alone, so that the sum is always byte-identical, whichever subtrees are known. Writable arrays are reused.

    >>> tree_sum({(0, 2): [np.ones(1)], (2, 3): [np.ones(1)]}, 3)
    [array([2.])]
    """
    return _sum((0, count), sums.get)


def _sum(tree: Tree, values_of: Callable[[Tree], Values | None]) -> Values:
    if (values := values_of(tree)) is not None:
        return values
    left, right = (_sum(half, values_of) for half in _halves(tree))
    return [np.asarray(np.add(a, b, out=a if a.flags.writeable else None)) for a, b in zip(left, right, strict=True)]


def _halves(tree: Tree) -> tuple[Tree, Tree]:
    """Return the two subtrees that a tree adds: the left one has a power of two of slices.

    >>> _halves((0, 5)), _halves((4, 7))
    (((0, 4), (4, 5)), ((4, 6), (6, 7)))
    """
    first, end = tree
    middle = first + 2 ** ((end - first - 1).bit_length() - 1)
    return (first, middle), (middle, end)
