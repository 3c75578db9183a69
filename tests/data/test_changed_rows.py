"""Files that are written anew between the split and the reading of a stream are rejected, not read as other rows."""

import os
import threading

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ortpipe.data import arrays
from ortpipe.data.batches import Batches
from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.npy import Npy
from ortpipe.data.sources.parquet import Parquet
from ortpipe.errors import DataError

ROWS = 60


def written(path, label, part=None):
    columns = {"x": np.arange(len(label), dtype=np.float32), "y": label, **({} if part is None else {"part": part})}
    parquet.write_table(pa.table(columns), path, row_group_size=20)


def stream(path, split):
    data = load(DataConfig(Parquet(path=str(path), label="y", stream=True), split))
    assert len(list(data.train.read())) > 1
    return data.train


def test_a_file_that_was_written_anew_is_not_read(tmp_path):
    path = tmp_path / "rows.parquet"
    written(path, np.tile([0, 1], ROWS // 2))
    rows = stream(path, SplitConfig(test=0.25))
    written(path, np.tile([1, 0], ROWS // 2))  # the same classes, as often
    with pytest.raises(DataError, match="which was written anew"):
        list(rows.read())
    path.unlink()
    with pytest.raises(DataError, match="which is gone"):
        list(rows.read())


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        (np.tile([0, 2], ROWS // 2), "a row of the new class 2"),
        (np.repeat([0, 1], [ROWS - 10, 10]), "another number of rows, or other labels, in group 1"),
        (np.repeat([1, 0], [ROWS - 10, 10]), "another number of rows, or other labels, in group 1"),
    ],
)
def test_classes_that_changed_since_a_stratified_split(tmp_path, monkeypatch, labels, got):
    monkeypatch.setattr(arrays, "GROUP", 80)  # twenty rows
    np.save(tmp_path / "x.npy", np.arange(ROWS, dtype=np.float32)[:, None])
    np.save(tmp_path / "y.npy", np.tile([0, 1], ROWS // 2))
    data = load(DataConfig(Npy(path=str(tmp_path), label="y", stream=True), SplitConfig(test=0.25, stratify=True)))
    assert len(list(data.train.read())) > 0
    np.load(tmp_path / "y.npy", mmap_mode="r+")[:] = labels
    with pytest.raises(DataError, match=got):
        list(data.train.read())


def test_what_a_second_thread_finds_is_raised_where_batches_are_read(tmp_path):
    path = tmp_path / "rows.parquet"
    written(path, np.tile([0, 1], ROWS // 2))
    rows = stream(path, SplitConfig(test=0.25, stratify=True))
    batches, earlier = Batches(rows, lambda piece: {"x": piece.inputs["x"]}, 4), {*threading.enumerate()}
    assert len(list(batches.epoch(1))) > 0
    written(path, np.tile([0, 2], ROWS // 2))
    with pytest.raises(DataError, match="which was written anew"):
        list(batches.epoch(2))
    new = {*threading.enumerate()} - earlier  # another test's may still be there until its iterator is collected
    assert [thread for thread in new if thread.name.startswith("prefetch")] == []


def test_a_split_column_that_changed_behind_an_unchanged_stamp(tmp_path):
    path, part = tmp_path / "rows.parquet", np.tile(["train", "train", "test"], ROWS // 3)
    written(path, np.arange(float(ROWS)), part)
    before = path.stat()
    rows = stream(path, SplitConfig(column="part", test=0.0))
    written(path, np.arange(float(ROWS)), np.where(part == "test", "oops", part))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match="'oops' in column 'part'"):
        list(rows.read())
