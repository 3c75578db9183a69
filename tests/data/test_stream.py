"""Rows that are read anew: the same rows as in memory, every part, every order, every epoch."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits, load_iris

from ortpipe.data import batches, rows, stream
from ortpipe.data.batches import Batches
from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.pieces import concatenate
from ortpipe.data.rows import Rows
from ortpipe.data.sources.npy import Npy
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.split import split
from ortpipe.data.stream import Stream
from ortpipe.errors import DataError

COUNT = 1000
X = np.stack([np.arange(COUNT), -np.arange(COUNT)], axis=1).astype(np.float64)
Y = np.arange(COUNT) % 3


def written(kind, folder, stream=True, x=X, y=Y, **settings):
    """Write rows and return the source that streams them."""
    if kind == "parquet":
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
        frame.to_parquet(folder / "rows.parquet", row_group_size=130)
        return Parquet(
            path=str(folder / "rows.parquet"), label="y", inputs={"X": None}, stream=stream, window=4, **settings
        )
    if kind in ("npz", "npz_packed"):
        {"npz": np.savez, "npz_packed": np.savez_compressed}[kind](folder / "rows.npz", X=x, y=y)
        return Npz(str(folder / "rows.npz"), stream=stream, window=4, **settings)
    np.save(folder / "X.npy", np.asfortranarray(x) if kind == "npy_by_column" else x)
    np.save(folder / "y.npy", y)
    return Npy(str(folder), stream=stream, window=4, **settings)


KINDS = ["parquet", "npy", "npy_by_column", "npz", "npz_packed"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Let a thousand rows be many groups, pieces and windows."""
    monkeypatch.setattr(rows, "PIECE", 900)
    monkeypatch.setattr("ortpipe.data.pieces.PIECE", 900)
    monkeypatch.setattr("ortpipe.data.table_reader.PIECE", 700)
    monkeypatch.setattr("ortpipe.data.arrays.GROUP", 900)
    monkeypatch.setattr("ortpipe.data.parts.BLOCK", 150)
    monkeypatch.setattr(stream, "MIB", 50 * 16)
    monkeypatch.setattr(batches, "CHUNK", 50 * 24)


def feed(piece):
    return {"X": piece.inputs["X"], "y": piece.label}


def whole(part):
    return concatenate(list(part.pieces()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_rows_that_memory_has(kind, tmp_path):
    source = written(kind, tmp_path)
    streamed, held = source(), dataclasses.replace(source, stream=False)()
    assert isinstance(streamed, Stream)
    assert isinstance(held, Rows)
    assert len(streamed) == len(held) == COUNT
    assert max(len(piece) for piece in streamed.pieces()) == 900 // 16
    assert [piece.digest() for piece in streamed.pieces()] == [piece.digest() for piece in held.pieces()]


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_more_than_the_limit_streams_by_itself(kind, tmp_path, monkeypatch):
    source = written(kind, tmp_path, stream=None)
    assert isinstance(source(), Rows)
    monkeypatch.setattr(stream, "LIMIT", 16 * COUNT - 1)
    assert isinstance(source(), Stream)
    monkeypatch.setattr(stream, "LIMIT", 16 * COUNT)
    assert isinstance(source(), Rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stratify", [False, True])
def test_fractions_draw_every_row_into_one_part_of_the_right_size(kind, stratify, tmp_path):
    data = split(written(kind, tmp_path)(), SplitConfig(test=0.25, validation=0.1, stratify=stratify))
    parts = [whole(part) for part in (data.train, data.validation, data.test)]
    assert [len(part) for part in parts] == [len(data.train), len(data.validation), len(data.test)]
    assert [len(part) for part in parts] == pytest.approx([650, 100, 250], abs=1)
    assert sorted(np.concatenate([part.inputs["X"][:, 0] for part in parts])) == list(range(COUNT))
    np.testing.assert_array_equal(parts[0].label, parts[0].inputs["X"][:, 0] % 3)


def test_a_stratified_draw_keeps_rare_classes_in_every_part(tmp_path):
    rare = (np.random.default_rng(0).random(COUNT) < 0.08).astype(int)
    data = split(written("npy", tmp_path, y=rare)(), SplitConfig(test=0.25, validation=0.25, stratify=True))
    for part in (data.train, data.validation, data.test):
        assert whole(part).label.mean() == pytest.approx(rare.mean(), abs=0.03)


def test_a_draw_is_decided_by_its_seed_alone(tmp_path):
    source = written("npy", tmp_path)
    drawn = [
        whole(load(DataConfig(source, SplitConfig(seed=seed))).test).inputs["X"][:, 0].tolist() for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("kind", ["parquet", "npy"])
def test_an_empty_part_is_refused(kind, tmp_path):
    streamed = written(kind, tmp_path, x=X[:3], y=Y[:3])()
    with pytest.raises(DataError, match=r"must have rows(.|\n)*split\.test=0\.1 of 3 rows"):
        split(streamed, SplitConfig(test=0.1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("part", "size"), [("train", 32), ("train", 7), ("test", 300), ("validation", 1)])
def test_every_row_of_a_part_comes_once_an_epoch_in_whole_batches(kind, shuffle, part, size, tmp_path):
    part_rows = getattr(split(written(kind, tmp_path)(), SplitConfig(validation=0.1)), part)
    made = Batches(part_rows, feed, size, seed=0, shuffle=shuffle)
    found = list(made.epoch(1))
    assert {chunk["X"].shape[1] for chunk in found[:-1]} <= {made.size}
    assert sum(len(chunk["X"]) for chunk in found) == -(-len(part_rows) // made.size)
    seen = np.concatenate([chunk["X"].reshape(-1, 2) for chunk in found])
    labels = np.concatenate([chunk["y"].ravel() for chunk in found])
    np.testing.assert_array_equal(labels, seen[:, 0] % 3)
    expected = whole(part_rows).inputs["X"][:, 0]
    assert made.count == len(expected)
    if shuffle:
        assert sorted(seen[:, 0]) == expected.tolist()
        assert size == 1 or seen[:, 0].tolist() != expected.tolist()
    else:
        np.testing.assert_array_equal(seen[:, 0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_follows_from_the_seed_and_the_epoch_alone(kind, tmp_path):
    def order(seed, number):
        made = Batches(written(kind, tmp_path)(), feed, 10, seed=seed, shuffle=True)
        return np.concatenate([chunk["X"][..., 0].ravel() for chunk in made.epoch(number)]).tolist()

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, number)) for seed, number in ((0, 1), (0, 2), (1, 1))}) == 3


def test_rows_of_distant_groups_meet_in_a_batch(tmp_path):
    """In the first buffer of 200 rows a uniform draw of as many from 1000 would span nearly all of them."""
    made = Batches(written("npy", tmp_path)(), feed, 20, seed=0, shuffle=True)
    first = next(iter(made.epoch(1)))["X"][0, :, 0]
    assert np.ptp(first) > 500
    assert (np.diff(np.sort(first)) > 30).sum() >= 3


def test_a_chunk_of_a_stream_is_bounded(tmp_path):
    made = Batches(written("npy", tmp_path)(), feed, 10, seed=0, shuffle=True)
    assert max(sum(array.nbytes for array in chunk.values()) for chunk in made.epoch(1)) <= 50 * 24


def test_rows_of_a_users_own_are_shuffled_as_a_whole():
    [chunk, *_] = Batches(Rows({"X": X}, Y), feed, 500).epoch(1)
    expected = np.random.default_rng([0, 1]).permutation(COUNT)[: chunk["X"][..., 0].size]
    np.testing.assert_array_equal(chunk["X"][..., 0].ravel(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_evenly_spaced_over_all_rows(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "MIB", 16 * 101 / 4)
    streamed = written(kind, tmp_path)()
    assert streamed.sample().inputs["X"][:, 0].tolist() == list(range(0, COUNT, 10))
    assert streamed.head(70).inputs["X"][:, 0].tolist() == list(range(70))
    assert sum(len(piece) for piece in streamed.pieces(most=COUNT)) == COUNT


def test_the_digest_tells_contents_parts_and_draws_apart(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    one, same = (written("npy", folder)() for folder in folders[:2])
    other = written("npy", folders[2], y=Y[::-1].copy())()
    assert one.digest() == same.digest() != other.digest()
    data, again = (split(one, SplitConfig(seed=seed)) for seed in (0, 1))
    assert len({part.digest() for part in (one, data.train, data.test, again.train)}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_is_not_finite_is_refused_with_its_row_before_training(kind, tmp_path):
    x = X.copy()
    x[777, 1] = np.nan
    with pytest.raises(DataError, match=r"(nan|nothing) in (column 'b', row 777 of|.*, row 777, column 1)"):
        written(kind, tmp_path, x=x)()


@pytest.mark.parametrize("kind", ["parquet", "npy"])
def test_the_labels_of_a_stream_are_remembered(kind, tmp_path):
    words = np.array(["no", "yes"])[np.arange(COUNT) % 2]
    assert written(kind, tmp_path, y=words)().labels.tolist() == ["no", "yes"]
    assert written(kind, tmp_path)().labels.tolist() == [0, 1, 2]
    assert written(kind, tmp_path, y=Y * 0.5)().labels is None


def test_too_many_labels_are_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "DISTINCT", 500)
    assert written("npy", tmp_path, y=np.arange(COUNT))().labels is None


@pytest.mark.parametrize("load_set", [load_digits, load_iris])
def test_a_stream_of_a_public_set_is_that_set(load_set, tmp_path):
    """scikit-learn 1.9."""
    x, y = load_set(return_X_y=True)
    read = whole(written("npy", tmp_path, x=x, y=y)())
    np.testing.assert_array_equal(read.inputs["X"], x)
    np.testing.assert_array_equal(read.label, y)


NO_ARRAYS = {
    "text": lambda path: path.write_text("1,2,3"),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "objects": lambda path: np.save(path, np.array([{}], object)),
}


@pytest.mark.parametrize("spoil", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_a_file_that_is_no_plain_array_is_named(spoil, tmp_path):
    source = written("npy", tmp_path)
    spoil(tmp_path / "X.npy")
    with pytest.raises(DataError, match=r"one array of numbers or text(.|\n)*X\.npy"):
        source()


def test_one_file_of_features_takes_its_labels_from_beside_it(tmp_path):
    written("npy", tmp_path)
    np.save(tmp_path / "other.npy", np.ones(5))
    read = Npy(str(tmp_path / "X.npy"))()
    assert list(read.inputs) == ["X"]
    assert len(read) == COUNT


def test_arrays_of_different_lengths_are_refused(tmp_path):
    source = written("npy", tmp_path)
    np.save(tmp_path / "y.npy", Y[:-1])
    with pytest.raises(DataError, match=r"one entry per row(.|\n)*'X'.*\(1000, 2\), the labels \(999,\)"):
        source()
