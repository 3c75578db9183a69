"""Slices cover a batch, and their sum does not depend on anything but their number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortpipe.parallel import slice_bounds, tree_sum


@given(st.integers(1, 1000), st.integers(1, 64))
def test_slices_cover_all_rows_once_and_differ_by_one_row_at_most(rows, slices):
    bounds = slice_bounds(rows, slices)
    assert [first for first, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == rows
    sizes = {end - first for first, end in bounds}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert len(bounds) == min(rows, slices)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_a_sum_adds_neighbours_in_pairs(count):
    parts = [np.random.default_rng(i).normal(size=1000).astype(np.float32) for i in range(count)]

    def pairwise(numbers):
        if len(numbers) == 1:
            return parts[numbers[0]]
        half = 2 ** ((len(numbers) - 1).bit_length() - 1)  # the largest power of two below the count
        return pairwise(numbers[:half]) + pairwise(numbers[half:])

    assert tree_sum(parts).tobytes() == pairwise(range(count)).tobytes()
    np.testing.assert_allclose(tree_sum(parts), np.sum(parts, axis=0, dtype=np.float64), atol=1e-5)
