"""Splits by time, group, class and fold; scikit-learn's splitters are the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold, TimeSeriesSplit

from ortpipe.data.load import DataConfig, load, read_rows, split_rows
from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.split import split
from ortpipe.errors import ConfigError, DataError

N = 60
RNG = np.random.default_rng(0)
DAYS = RNG.permutation(N // 2).repeat(2)  # each day twice
FRAME = pd.DataFrame(
    {
        "x": np.arange(N),
        "day": (pd.Timestamp("2024-01-15") + pd.to_timedelta(DAYS, "D")).strftime("%Y-%m-%d"),
        "storm_id": RNG.integers(0, 12, N),
        "label": np.where(np.arange(N) % 5 == 0, "rare", "often"),
    }
)


@pytest.fixture
def source(tmp_path: Path) -> Csv:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    return Csv(path=str(tmp_path / "rows.csv"), label="label")


def numbers(rows: RowSet | None) -> list[int]:
    assert isinstance(rows, Rows)
    return rows.inputs["x"].astype(int).tolist()


def of(data: Data, column: str) -> list[set[Any]]:
    return [set(FRAME[column][numbers(part)]) for part in (data.train, data.validation, data.test) if part is not None]


def test_a_split_by_time_tests_on_the_latest_rows(source: Csv) -> None:
    data = load(DataConfig(source, SplitConfig(0.25, 0.15, time="day")))
    train, validation, test = of(data, "day")
    assert max(train) < min(validation) <= max(validation) < min(test)
    assert [len(part) for part in (data.train, data.validation, data.test) if part is not None] == [36, 8, 16]
    assert isinstance(data.train, Rows)
    assert list(data.train.inputs) == ["x", "storm_id"]
    assert any("the latest rows by column 'day'" in note for note in data.notes)
    listed = load(DataConfig(Csv(path=source.path, label="label", inputs=("x",)), SplitConfig(time="day")))
    assert numbers(listed.test) == numbers(load(DataConfig(source, SplitConfig(time="day"))).test)


def test_times_with_offsets_and_numbers_are_ordered() -> None:
    times = ["2024-01-01T03:00+02:00", "2024-01-01T00:30Z", "2024-01-01T02:00", "2023-12-31"]
    inputs = {"x": np.arange(4.0), "t": np.array(times)}
    data = split(Rows(inputs, np.arange(4)), SplitConfig(0.25, 0.25, time="t"))
    assert [numbers(part) for part in (data.train, data.validation, data.test)] == [[1, 3], [0], [2]]
    data = split(Rows(inputs | {"t": np.array([3.0, 1, 2, 0])}, np.arange(4)), SplitConfig(0.25, None, time="t"))
    assert numbers(data.test) == [0]


def test_a_split_by_group_keeps_groups_together(source: Csv) -> None:
    parts = [
        of(load(DataConfig(source, SplitConfig(0.25, 0.25, group="storm_id", seed=s))), "storm_id") for s in (0, 0, 1)
    ]
    for train, validation, test in parts:
        assert len(train) + len(validation) + len(test) == 12
        assert len(train | validation | test) == 12
        assert len(test) == len(validation) == 3
    assert parts[0] == parts[1] != parts[2]


def test_arrays_are_split_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.arange(N), g=FRAME["storm_id"], y=np.arange(N))
    data = load(DataConfig(Npz(str(tmp_path / "rows.npz")), SplitConfig(group="g")))
    train, test = of(data, "storm_id")
    assert not train & test


@pytest.mark.parametrize("stream", [False, True])
def test_classes_of_a_table_are_stratified_unless_they_are_too_few(source: Csv, stream: bool) -> None:
    read = Csv(path=source.path, label="label", stream=stream)
    data = load(DataConfig(read, SplitConfig(0.25, stratify=None)))
    assert data.test is not None
    labels = np.concatenate([label for label, _ in data.test.read_labels()])
    assert dict(zip(*np.unique(labels, return_counts=True), strict=True)) == {"often": 12, "rare": 3}
    values = load(DataConfig(Csv(path=source.path, label="x", stream=stream), SplitConfig(0.25, stratify=None)))
    assert not any("stratified" in note for note in values.notes)  # each of 60 integers once
    one = load(
        DataConfig(
            Csv(path=source.path, label="day", categorical=("day",), stream=stream), SplitConfig(0.02, stratify=None)
        )
    )
    assert any("not stratified by class" in note for note in one.notes)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SplitConfig(stratify=None), StratifiedKFold(4, shuffle=True, random_state=0).split(FRAME, FRAME["label"])),
        (SplitConfig(seed=3), KFold(4, shuffle=True, random_state=3).split(FRAME)),
        (SplitConfig(group="storm_id"), GroupKFold(4).split(FRAME, groups=FRAME["storm_id"].astype(str))),
    ],
)
def test_folds_are_those_of_scikit_learn(source: Csv, config: SplitConfig, expected: Any) -> None:
    for number, (train, test) in enumerate(expected):
        whole = DataConfig(source, config)
        data = split_rows(read_rows(whole), whole, (number, 4))
        assert (numbers(data.train), numbers(data.test)) == (train.tolist(), test.tolist())


def test_folds_by_time_train_on_earlier_rows(source: Csv) -> None:
    order = np.argsort(DAYS, kind="stable")
    for number, (_, test) in enumerate(TimeSeriesSplit(3).split(order)):
        whole = DataConfig(source, SplitConfig(validation=0.2, time="day"))
        data = split_rows(read_rows(whole), whole, (number, 3))
        assert sorted(numbers(data.test)) == sorted(order[test])
        train, validation, tested = of(data, "day")
        assert max(train) < min(validation) <= max(validation) < min(tested)


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (SplitConfig(), "'day' holds dates; to test on the latest rows, set data.split.time=day"),
        (SplitConfig(test=None), None),
        (SplitConfig(time="day"), None),
    ],
)
def test_a_random_split_of_a_table_with_dates_or_ids_warns(source: Csv, config: SplitConfig, note: str | None) -> None:
    warnings = [text for text in load(DataConfig(source, config)).notes if text.startswith("warning")]
    assert (len(warnings) == 1 and note in warnings[0]) if note else not warnings
    ids = load(DataConfig(Csv(path=source.path, label="label", inputs=("x", "storm_id")), config)).notes
    shared = [text for text in ids if "60 rows share 12 values of column 'storm_id'" in text]
    assert bool(shared) == (note is not None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SplitConfig(time="label"), r"split\.time must name a column|must name a column of the data"),
        (SplitConfig(group="town"), r"split\.group must name a column(.|\n)*'town'(.|\n)*day, label, storm_id, x"),
        (SplitConfig(0.9, 0.1, time="storm_id"), "no train rows"),
        (SplitConfig(0.99, group="storm_id"), "Every part of the split must have rows"),
    ],
)
def test_wrong_columns_and_fractions_are_rejected(source: Csv, config: SplitConfig, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(DataConfig(source, config))


def test_what_cannot_be_a_time_is_rejected(tmp_path: Path) -> None:
    rows = Rows({"x": np.arange(3.0), "t": np.array(["2024-01-01", "May", ""])}, np.arange(3))
    with pytest.raises(DataError, match=r"1 rows without one, the first in row 2"):
        split(rows, SplitConfig(time="t"))
    with pytest.raises(DataError, match=r"dates \(ISO 8601\)(.|\n)*'May'"):
        split(rows.take(slice(2)), SplitConfig(time="t"))
    with pytest.raises(ConfigError, match="only random ones are stratified"):
        SplitConfig(time="t", stratify=True)
    with pytest.raises(ConfigError, match="Remove all but one"):
        SplitConfig(time="t", group="g")
    pd.DataFrame({"t": [1, 2], "y": [1, 2]}).to_csv(tmp_path / "r.csv", index=False)
    with pytest.raises(DataError, match="must not be the only input"):
        load(DataConfig(Csv(path=str(tmp_path / "r.csv"), label="y", stream=True), SplitConfig(0.5, None, time="t")))


@pytest.mark.parametrize("config", [SplitConfig(0.25, 0.15, time="day"), SplitConfig(0.25, 0.25, group="storm_id")])
def test_streamed_rows_have_the_same_parts(config: SplitConfig, source: Csv, tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "rows.parquet", row_group_size=17)
    file = str(tmp_path / "rows.parquet")
    streamed, in_memory = (
        load(DataConfig(Parquet(path=file, label="label", stream=stream), config)) for stream in (True, False)
    )
    assert streamed.train.on_disk
    for part in ("train", "validation", "test"):
        rows, expected = getattr(streamed, part), getattr(in_memory, part)
        assert len(rows) == len(expected)
        pieces = list(rows.read())
        assert [x for piece in pieces for x in numbers(piece)] == numbers(expected)
        assert [name for label, _ in rows.read_labels() for name in label] == expected.label.tolist()
        assert {tuple(piece.inputs) for piece in pieces} == {tuple(expected.inputs)}
    assert [note for note in streamed.notes if "split by" in note] == [n for n in in_memory.notes if "split by" in n]
    with pytest.raises(DataError, match=r"Folds need rows in memory(.|\n)*source\.stream"):
        split_rows(
            read_rows(DataConfig(Parquet(path=file, label="label", stream=True))), DataConfig(source, config), (0, 3)
        )
