"""Rows train, validate and test to the same bytes whether they stream or are in memory."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from sample import pairs
from sklearn.linear_model import LogisticRegression

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.npy import Npy
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.stream import Stream
from ortpipe.errors import ConfigError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

COUNT = 700
RNG = np.random.default_rng(0)
X = RNG.normal(size=(COUNT, 3)).round(3)
Y = np.where(X @ [1.0, -2.0, 0.5] + RNG.normal(size=COUNT) > 0.8, "yes", "no")
SPLITS = [
    SplitConfig(test=0.2, validation=0.1, seed=4),
    SplitConfig(test=0.2, validation=0.1, stratify=True),
    SplitConfig(column="part"),
]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Let 700 rows be many groups, blocks, pieces and windows."""
    monkeypatch.setattr("ortpipe.data.rows.PIECE", 2000)
    monkeypatch.setattr("ortpipe.data.pieces.PIECE", 2000)
    monkeypatch.setattr("ortpipe.data.table_reader.PIECE", 1000)
    monkeypatch.setattr("ortpipe.data.arrays.GROUP", 1500)
    monkeypatch.setattr("ortpipe.data.csv_text.BLOCK", 1500)
    monkeypatch.setattr("ortpipe.data.parts.BLOCK", 90)
    monkeypatch.setattr("ortpipe.data.stream.MIB", 24)
    monkeypatch.setattr("ortpipe.data.batches.CHUNK", 3000)


def written(kind, folder, split, window=200):
    part = {"part": np.array(["train", "validation", "test"])[np.arange(COUNT) % 3]} if split.column else {}
    settings = {"label": "y", "window": window}
    if kind in ("parquet", "csv"):
        settings["inputs"] = {"X": None}
        frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y, **part})
        if kind == "csv":
            frame.to_csv(folder / "rows.csv", index=False)
            return Csv(path=str(folder / "rows.csv"), **settings)
        frame.to_parquet(folder / "rows.parquet", row_group_size=60)
        return Parquet(path=str(folder / "rows.parquet"), **settings)
    if kind == "npz":
        np.savez(folder / "rows.npz", X=X, y=Y, **part)
        return Npz(str(folder / "rows.npz"), **settings)
    for name, array in {"X": X, "y": Y, **part}.items():
        np.save(folder / f"{name}.npy", array)
    return Npy(str(folder), **settings)


def trained(source, split, stream=None, **settings):
    if stream is not None:
        source = dataclasses.replace(source, stream=stream)
    data = load(DataConfig(source, split))
    forward = convert(LogisticRegression(), data=data)
    gradients = derive(add_loss(forward, AddLossConfig(LOSSES["log"]())), DeriveConfig(check=True), data=data)
    config = TrainConfig(
        OPTIMIZERS["adam"](0.01),
        epochs=3,
        batch_size=16,
        early_stop=EarlyStopConfig(monitor="accuracy", patience=10),
        **settings,
    )
    result = train(gradients, config, data=data)
    return data, result, evaluate(result, EvaluateConfig(rows=100), data=data)


KINDS = ("parquet", "npy", "npz", "csv")


# Shuffled: half of the pairs of a kind and a split. Not shuffled: each split once.
@pytest.mark.parametrize(
    ("kind", "split", "shuffle"),
    [
        *((kind, split, True) for kind, split in pairs(KINDS, SPLITS, 2)),
        *((*case, False) for case in zip(KINDS, SPLITS, strict=False)),
    ],
)
def test_streamed_rows_train_to_the_bytes_of_rows_in_memory(kind, split, shuffle, tmp_path):
    source = written(kind, tmp_path, split)
    (streamed, *results), (held, *expected) = (
        trained(source, split, stream, shuffle=shuffle) for stream in (True, False)
    )
    assert isinstance(streamed.train, Stream)
    assert isinstance(held.train, Rows)
    for result, other in zip(results, expected, strict=True):
        assert result.tensors.keys() == other.tensors.keys()
        for name, tensor in result.tensors.items():
            np.testing.assert_array_equal(tensor, other.tensors[name], name)
        assert result.digest() == other.digest()


@pytest.mark.parametrize("split", SPLITS[:2], ids=["fractions", "stratified"])
def test_the_same_rows_of_any_kind_of_file_train_to_the_same_bytes(split, tmp_path):
    """As long as all of them fit in a window: a larger file's groups come in an order of their own."""
    kinds = [("csv", False), ("parquet", True), ("npy", False), ("npz", True)]
    (_, first, _), *others = (
        trained(written(kind, tmp_path, split, window=1000), split, stream) for kind, stream in kinds
    )
    for _, other, _ in others:
        for name, tensor in first.tensors.items():
            np.testing.assert_array_equal(tensor, other.tensors[name], name)


@pytest.mark.parametrize("kind", ["parquet", "npy"])
def test_another_window_is_another_order_that_the_data_say(kind, tmp_path):
    narrow, wide = (written(kind, tmp_path, SPLITS[0], window) for window in (200, 300))
    (one, first, _), (other, second, _) = (trained(source, SPLITS[0], stream=False) for source in (narrow, wide))
    assert one.digest() != other.digest()
    assert "through a window of 200" in one.notes[-1]
    assert (first.tensors["parameter/coefficient"] != second.tensors["parameter/coefficient"]).any()


def test_a_stream_is_not_shuffled_as_a_whole():
    with pytest.raises(ConfigError, match=r"need a shuffle window(.|\n)*window=64"):
        Parquet(path="rows.parquet", label="y", stream=True, window=None)


def test_rows_without_a_window_stay_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("ortpipe.data.stream.LIMIT", 1)
    assert isinstance(written("npy", tmp_path, SPLITS[0])(), Stream)
    assert isinstance(written("npy", tmp_path, SPLITS[0], window=None)(), Rows)


@pytest.mark.parametrize("stratify", [False, True])
def test_a_split_takes_its_share_of_every_class_and_stretch(stratify, tmp_path):
    """Within one row: of each class where it is stratified, of each block of rows otherwise."""
    split = SplitConfig(test=0.3, validation=0.2, stratify=stratify)
    data = load(DataConfig(written("npy", tmp_path, split), split))
    [test], [validation] = (
        [part.rows() if isinstance(part, Stream) else part] for part in (data.test, data.validation)
    )
    assert (len(test), len(validation)) == (210, 140)
    if stratify:
        for name in ("yes", "no"):
            count = (name == Y).sum()
            assert abs((test.label == name).sum() - 0.3 * count) < 1
            assert abs((validation.label == name).sum() - 0.2 * count) < 1.5
    places = np.array([int(np.flatnonzero((row == X).all(axis=1))[0]) for row in test.inputs["X"]])
    assert (np.diff(places) > 0).all()
    for first in () if stratify else range(0, COUNT, 90):
        size = min(90, COUNT - first)
        assert abs(((places >= first) & (places < first + size)).sum() - 0.3 * size) <= 1.5
