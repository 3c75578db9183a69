"""A profile is bounded, the same for equal rows, streamed or not, and read only if it is whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from registered import table

from ortpipe import Data, Rows
from ortpipe.app.drift import PROFILE, Profiler, read_profile
from ortpipe.app.drift.profile import ALL_VALUES, BINS, COLUMNS, FORMAT, ROWS, WORDS, profile_of
from ortpipe.data import RawColumn
from ortpipe.data.load import DataConfig, load
from ortpipe.data.sources.csv import Csv
from ortpipe.errors import ConfigError
from ortpipe.pipeline.events import RunFinished


def written(folder: Path, data: Data) -> str:
    Profiler(folder, data)(RunFinished(None))  # type: ignore[arg-type]
    return (folder / PROFILE).read_text(encoding="utf-8")


def test_streamed_rows_have_the_profile_of_rows_in_memory(tmp_path: Path) -> None:
    file = table(tmp_path / "rows.csv", 0, rows=160)
    texts = {written(tmp_path, load(DataConfig(Csv(path=file, label="y", stream=stream)))) for stream in (True, False)}
    assert len(texts) == 1
    columns = read_profile(tmp_path)
    assert {name: column.kind for name, column in columns.items()} == {"x": "number", "w": "word", "(label)": "word"}
    assert columns["w"].closed
    assert columns["x"].rows == 120
    assert len(columns["x"].values) == 120
    assert columns["x"].counts == (12,) * BINS


def test_a_profile_of_many_columns_words_and_rows_is_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.normal(size=(300, 200)).astype(np.float32),
        "image": rng.normal(size=(300, 2, 3, 3)).astype(np.float32),
        "word": np.array([f"{number}-" * 101 for number in range(300)]),
    }
    text = written(tmp_path, Data(Rows(inputs, np.arange(300))))
    columns = read_profile(tmp_path)
    assert len(columns) == 203
    assert len(text) < 40 * 200 * (ALL_VALUES // 200 + 2 * BINS)
    assert columns["word"].counts == (300,)  # longer words are not kept
    assert not columns["word"].closed
    assert columns["(label)"].kind == "number"  # more than WORDS classes
    many = profile_of(Data(Rows({"x": np.zeros((2, COLUMNS)), "y": np.zeros(2)}, np.zeros(2, int))))
    assert len(many) == COLUMNS
    assert many["(label)"].words == ("0",)
    assert profile_of(Data(Rows({"x": np.arange(3.0 * ROWS)}, np.arange(3 * ROWS) % WORDS)))["x"].rows == ROWS


def test_missing_values_and_constants_have_their_place() -> None:
    inputs = {"x": np.array([np.nan, 1, 1, 1]), "when": np.array(["2024-01-01", "", "", "2025-01-01"])}
    kept = {"x": RawColumn("number"), "when": RawColumn("date")}
    columns = profile_of(Data(Rows(inputs, np.array(["a", "b", "", "b"]), kept=kept)))
    column = columns["x"]
    assert (column.missing, column.least, column.most, column.edges, column.counts) == (1, 1, 1, (), (3,))
    assert (columns["when"].kind, columns["when"].missing) == ("date", 2)
    assert columns["(label)"].missing == 1


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"columns": []}, {"columns": {"x": {}}}, {"columns": {"x": {"kind": "word", "rows": 1}}}, None],
)
def test_a_damaged_profile_is_an_error(change: dict[str, object] | None, tmp_path: Path) -> None:
    facts = {"format": FORMAT, "columns": {}}
    (tmp_path / PROFILE).write_text("[" if change is None else json.dumps({**facts, **change}))
    with pytest.raises(ConfigError, match=r"must have its profile\.json") as error:
        read_profile(tmp_path)
    assert error.value.fix
