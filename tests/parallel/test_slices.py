"""Slices cover a batch, and their sum does not depend on anything but their number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortpipe.parallel import slice_bounds, subtree_sums, tree_sum

EXAMPLES = settings(deadline=None, derandomize=True, database=None)


@EXAMPLES
@given(st.integers(1, 1000), st.integers(1, 64))
def test_slices_cover_all_rows_once_and_differ_by_one_row_at_most(rows, slices):
    bounds = slice_bounds(rows, slices)
    assert [first for first, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == rows
    sizes = {end - first for first, end in bounds}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert len(bounds) == min(rows, slices)
    assert slice_bounds(rows, 2**31) == slice_bounds(rows, rows)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_a_sum_adds_neighbours_in_pairs(count):
    parts = [np.random.default_rng(i).normal(size=1000).astype(np.float32) for i in range(count)]

    def pairwise(numbers):
        if len(numbers) == 1:
            return parts[numbers[0]]
        half = 2 ** ((len(numbers) - 1).bit_length() - 1)  # the largest power of two below the count
        return pairwise(numbers[:half]) + pairwise(numbers[half:])

    [total] = tree_sum({(i, i + 1): [part.copy()] for i, part in enumerate(parts)}, count)
    assert total.tobytes() == pairwise(range(count)).tobytes()
    np.testing.assert_allclose(total, np.sum(parts, axis=0, dtype=np.float64), atol=1e-5)


@EXAMPLES
@given(st.integers(1, 20), st.data())
def test_workers_that_add_their_own_slices_change_no_byte(count, data):
    numbers = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    owners = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    sums = {}
    for owner in set(owners):
        own = [number for number in range(count) if owners[number] == owner]
        sums |= subtree_sums(lambda number: [numbers[number].copy()], own, count)
    alone = subtree_sums(lambda number: [numbers[number].copy()], range(count), count)
    assert [*alone] == [(0, count)]
    assert tree_sum(sums, count)[0].tobytes() == alone[0, count][0].tobytes()


def test_two_halves_of_the_slices_are_two_sums():
    assert [len(subtree_sums(lambda number: [], range(*part), 8)) for part in slice_bounds(8, 2)] == [1, 1]
