"""Validation and test rows, and a sample, are written to a temporary file in one pass, and are the rows of the data."""

import collections
import dataclasses
import errno
import io
import logging
import os
import tempfile

import numpy as np
import pandas as pd
import pytest
from sample import pairs
from sklearn.linear_model import LogisticRegression

from ortpipe.data import arrays, spill, table_reader
from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.pieces import concatenate
from ortpipe.data.rows import PIECE
from ortpipe.data.sources.npy import Npy
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.spill import Spill
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.stage import train

COUNT, GROUP, SOME = 5000, 100, 4000
RNG = np.random.default_rng(0)
X = RNG.normal(size=(COUNT, 4))
Y = (X[:, 0] > 0.3).astype(np.int64)
PART = np.array(["train", "validation", "test"])[np.arange(COUNT) % 3]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("ortpipe.data.rows.PIECE", 2000)
    monkeypatch.setattr("ortpipe.data.pieces.PIECE", 2000)
    monkeypatch.setattr("ortpipe.data.spill.PIECE", 2000)
    monkeypatch.setattr("ortpipe.data.table_reader.PIECE", 2000)
    monkeypatch.setattr("ortpipe.data.arrays.GROUP", 32 * GROUP)
    monkeypatch.setattr("ortpipe.data.stream.MIB", 32 * 150)  # a window of 150 rows


@pytest.fixture
def reads(monkeypatch):
    """Count, by group of rows, how often they are read, and how often their labels alone are."""
    counts = collections.Counter()

    def counted(name, group):
        counts[name, group] += 1
        return group

    def one(name, read):
        return lambda self, group: read(self, counted(name, group))

    def several(name, read):
        return lambda self, groups: read(self, (counted(name, group) for group in groups))

    readers = table_reader.TableReader, arrays.ArrayReader
    for cls, rows, counting in ((readers[0], "pieces", several), (readers[1], "_rows", one)):
        monkeypatch.setattr(cls, rows, counting("pieces", getattr(cls, rows)))
        monkeypatch.setattr(cls, "read_labels", one("read_labels", cls.read_labels))
    return counts


def written(kind, folder, split, stream=True, window=1):
    part = {"part": PART} if split.column else {}
    if kind == "parquet":
        frame = pd.DataFrame({**{f"x{i}": X[:, i] for i in range(4)}, "y": Y, **part})
        frame.to_parquet(folder / "rows.parquet", row_group_size=GROUP)
        return Parquet(path=str(folder / "rows.parquet"), label="y", inputs={"X": None}, stream=stream, window=window)
    for name, array in {"X": X, "y": Y, **part}.items():
        np.save(folder / f"{name}.npy", array)
    return Npy(str(folder), stream=stream, window=window)


SPLITS = {
    "fractions": SplitConfig(test=0.2, validation=0.1),
    "stratified": SplitConfig(test=0.2, validation=0.1, stratify=True),
    "a column": SplitConfig(column="part"),
}


@pytest.mark.parametrize("kind", ["parquet", "npy"])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_the_written_parts_are_the_rows_of_memory(kind, split, tmp_path):
    source = written(kind, tmp_path, split)
    sources = (dataclasses.replace(source, stream=stream) for stream in (True, False))
    streamed, held = (load(DataConfig(source, split)) for source in sources)
    for part in ("validation", "test"):
        one, other = (concatenate(list(getattr(data, part).pieces())) for data in (streamed, held))
        assert one.digest() == other.digest()
        assert getattr(streamed, part).head(5).digest() == other.take(slice(5)).digest()
        several, expected = (concatenate(list(getattr(data, part).pieces(7))) for data in (streamed, held))
        assert several.digest() == expected.digest()
    assert streamed.train.sample().digest() == held.train.sample().digest()
    assert 70 < len(streamed.train.sample()) <= 150


@pytest.mark.parametrize("kind", ["parquet", "npy"])
@pytest.mark.parametrize(("split", "epochs"), pairs([*SPLITS.values()], [1, 2], 2))
def test_a_run_reads_the_data_twice_beside_its_epochs(kind, split, epochs, tmp_path, reads):
    """Once to check them (a table's reader does so without `pieces`), once to lay rows aside, and for each epoch.

    The labels alone are read once more, for the baseline.
    """
    data = load(DataConfig(written(kind, tmp_path, split), split))
    checked = 0 if kind == "parquet" else 1
    forward = convert(LogisticRegression(), data=data)
    gradients = derive(add_loss(forward, AddLossConfig(LOSSES["log"]())), DeriveConfig(check=True), data=data)
    early = EarlyStopConfig(monitor="accuracy", patience=10)
    trained = train(gradients, TrainConfig(epochs=epochs, batch_size=16, early_stop=early), data=data)
    evaluate(trained, EvaluateConfig(), data=data)
    behind = range(SOME // GROUP, COUNT // GROUP)  # the first ones are also looked at, as rows to try things on
    assert {reads["pieces", group] for group in behind} == {checked + 1 + epochs}
    assert {reads["read_labels", group] for group in behind} == {1 + split.stratify + (kind == "npy") * (2 + epochs)}


def test_parts_with_files_of_their_own_are_read_from_them(tmp_path, reads):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        written("parquet", tmp_path / name, SPLITS["fractions"])
    split = SplitConfig(test=str(tmp_path / "test"))
    source = Parquet(path=str(tmp_path / "train"), label="y", stream=True, window=1)
    data = load(DataConfig(source, split))
    assert sum(len(piece) for piece in data.test.pieces()) == COUNT
    assert {group for _, group in reads} == set(range(COUNT // GROUP, 2 * COUNT // GROUP))


def test_its_size_and_place_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "folder", lambda: "/scratch")
    monkeypatch.setattr(spill, "fits", lambda size: size < 32 * 3000)
    [*_, note] = load(DataConfig(written("npy", tmp_path, SPLITS["fractions"]), SPLITS["fractions"])).notes
    assert note == (
        "validation and test rows, and a sample of the training rows, 1 MB, are in an unnamed temporary file in "
        "/scratch (TMPDIR), which is freed when the process ends"
    )


def test_without_room_rows_are_read_from_the_data_each_time(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(spill, "fits", lambda size: False)
    data = load(DataConfig(written("npy", tmp_path, SPLITS["fractions"]), SPLITS["fractions"]))
    assert "has no room for a temporary file" in data.notes[-1]
    reads.clear()
    first, second = (concatenate(list(data.test.pieces())).digest() for _ in range(2))
    assert first == second
    assert reads["pieces", 3] == 2


def test_a_disk_that_fills_up_meanwhile_is_logged_and_changes_no_row(tmp_path, monkeypatch, caplog):
    data = load(DataConfig(written("npy", tmp_path, SPLITS["fractions"]), SPLITS["fractions"]))
    expected = concatenate(list(data.validation.pieces())).digest()

    def full(self, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spill, "write", full)
    again = load(DataConfig(written("npy", tmp_path, SPLITS["fractions"]), SPLITS["fractions"]))
    with caplog.at_level(logging.WARNING):
        assert concatenate(list(again.validation.pieces())).digest() == expected
    assert "No space left on device" in caplog.text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk here")
def test_a_disk_that_is_full_is_logged_also_where_all_rows_fit_into_the_last_piece(tmp_path, monkeypatch, caplog):
    config = DataConfig(written("npy", tmp_path, SPLITS["fractions"]), SPLITS["fractions"])
    expected = concatenate(list(load(config).validation.pieces())).digest()
    monkeypatch.setattr("ortpipe.data.spill.PIECE", PIECE)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: io.FileIO("/dev/full", "r+"))
    with caplog.at_level(logging.WARNING):
        assert concatenate(list(load(config).validation.pieces())).digest() == expected
    assert "No space left on device" in caplog.text


def test_the_first_rows_are_read_once(tmp_path, reads):
    data = load(DataConfig(written("parquet", tmp_path, SPLITS["fractions"]), SPLITS["fractions"]))
    for count in (1, 40, 2):
        assert data.train.head(count).digest() == data.train.head(count).digest()
        assert len(data.train.head(count)) == count
    assert reads["pieces", 0] == 1
