import numpy as np
import pytest

from ortpipe.data import batches
from ortpipe.data.batches import Batches
from ortpipe.data.rows import Rows

ROWS = Rows({"x": np.arange(23.0).reshape(23, 1)}, np.arange(23) * 10)


def batches_of(rows, size, **settings):
    return Batches(rows, lambda piece: {**piece.inputs, "y": piece.label}, size, **settings)


def test_every_row_comes_once_an_epoch_with_its_own_label():
    for number in (1, 2):
        chunks = list(batches_of(ROWS, 5).epoch(number))
        x = np.concatenate([chunk["x"].ravel() for chunk in chunks])
        y = np.concatenate([chunk["y"].ravel() for chunk in chunks])
        assert sorted(x) == list(range(23))
        np.testing.assert_array_equal(y, 10 * x)


def test_whole_batches_come_first_and_the_partial_one_alone_at_the_end():
    assert [chunk["x"].shape for chunk in batches_of(ROWS, 5).epoch(1)] == [(4, 5, 1), (1, 3, 1)]
    assert [chunk["x"].shape for chunk in batches_of(ROWS, 100).epoch(1)] == [(1, 23, 1)]


@pytest.mark.parametrize(("size", "steps"), [(1, 23), (5, 5), (23, 1), (100, 1)])
def test_an_epoch_has_as_many_steps_as_it_says(size, steps):
    made = batches_of(ROWS, size)
    assert (made.count, made.size) == (23, min(size, 23))
    assert sum(len(chunk["x"]) for chunk in made.epoch(1)) == steps


def test_the_order_follows_from_the_seed_and_the_epoch_alone():
    first, again, other, next_epoch = (
        np.concatenate([chunk["y"].ravel() for chunk in batches_of(ROWS, 5, seed=seed).epoch(number)]).tolist()
        for seed, number in ((0, 1), (0, 1), (1, 1), (0, 2))
    )
    assert first == again
    assert first not in (other, next_epoch)


def test_without_shuffling_rows_come_as_they_are():
    y = np.concatenate([chunk["y"].ravel() for chunk in batches_of(ROWS, 5, shuffle=False).epoch(3)])
    np.testing.assert_array_equal(y, ROWS.label)


def test_chunks_in_reused_memory_hold_the_same_rows(monkeypatch):
    monkeypatch.setattr(batches, "CHUNK", 160)  # two batches of five rows
    monkeypatch.setattr(batches, "LARGE_CHUNK", 0)
    own, reused = batches_of(ROWS, 5), batches_of(ROWS, 5, reused=True)
    places = set()
    for number in (1, 2):
        for one, other in zip(own.epoch(number), reused.epoch(number), strict=True):
            np.testing.assert_array_equal(one["x"], other["x"])
            np.testing.assert_array_equal(one["y"], other["y"])
            places |= {other["x"].ctypes.data} if len(other["x"]) > 1 else set()
    assert len(places) == 1


def test_a_chunk_holds_no_more_than_its_bytes_and_at_least_one_batch(monkeypatch):
    whole = np.concatenate([chunk["y"].ravel() for chunk in batches_of(ROWS, 5).epoch(1)])
    for limit, per_chunk in ((1, 1), (160, 2)):
        monkeypatch.setattr(batches, "CHUNK", limit)
        chunks = list(batches_of(ROWS, 5).epoch(1))
        assert max(len(chunk["y"]) for chunk in chunks) == per_chunk
        np.testing.assert_array_equal(np.concatenate([chunk["y"].ravel() for chunk in chunks]), whole)
