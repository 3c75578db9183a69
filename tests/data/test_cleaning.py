"""Rows without a label, columns that identify rows or repeat the label, and rows in two parts."""

import numpy as np
import pandas as pd
import pytest

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.function import Function
from ortpipe.data.sources.parquet import Parquet
from ortpipe.errors import DataError

COUNT = 24


def made(frame):
    return frame


def source(kind, frame, folder, **settings):
    if kind == "function":
        params = {"frame": frame}
        return Function(function="data.test_cleaning:made", params=params, label="y", **settings)
    path = folder / f"rows.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, row_group_size=10)
    return {"csv": Csv, "parquet": Parquet}[kind](path=str(path), label="y", **settings)


@pytest.mark.parametrize("kind", ["csv", "parquet", "function"])
@pytest.mark.parametrize("labels", [[1.0, None, 2.5], ["a", None, "?"], ["$1,000", "NA", "$2"]], ids=str)
def test_rows_without_a_label_are_an_error_with_their_count_or_left_out(kind, labels, tmp_path):
    frame = pd.DataFrame({"x": np.arange(30.0), "y": pd.Series(labels * 10)})
    wrong = [row for row, label in enumerate(labels * 10) if label in (None, "?", "NA")]
    with pytest.raises(DataError, match=rf"column 'y'(.|\n)*and {len(wrong) - 10} more|unlabeled=drop") as error:
        source(kind, frame, tmp_path, missing=("?",))()
    assert "set unlabeled=drop" in str(error.value)
    rows = source(kind, frame, tmp_path, missing=("?",), unlabeled="drop")()
    assert rows.inputs["x"].tolist() == [row for row in range(30) if row not in wrong]
    assert f"{len(wrong)} of 30 rows have no label and are left out" in rows.notes


def test_positions_count_the_rows_that_are_left_out(tmp_path):
    frame = pd.DataFrame({"x": [1.0] * 40, "y": [None, 1.0] * 20})
    frame.loc[35, "x"] = np.inf
    for kind, place in (("csv", "line 37 of"), ("parquet", "row 35 of")):
        with pytest.raises(DataError, match=f"inf in column 'x', {place}"):
            source(kind, frame, tmp_path, unlabeled="drop")()


FRAME = pd.DataFrame(
    {
        "customer_id": np.arange(COUNT)[::-1] * 7,
        "name": [f"person {n}" for n in range(COUNT)],
        "t": range(COUNT),  # whole numbers, whose name is no identifier's
        "grid": [n * 2 for n in range(COUNT)],
        "city": ["Rome", "Oslo"] * (COUNT // 2),
        "price": [f"${n},000" for n in range(100, 100 + COUNT)],
        "day": pd.date_range("2013-01-31", periods=COUNT).astype(str),
        "y": np.arange(COUNT) / 2,
    }
)


@pytest.mark.parametrize("kind", ["csv", "parquet", "function"])
def test_columns_that_identify_rows_are_left_out_and_printed(kind, tmp_path):
    rows = source(kind, FRAME, tmp_path)()
    assert list(rows.inputs) == ["t", "grid", "city", "price", "day"]
    assert "left out, because they identify rows (data.source.identifiers): customer_id, name" in rows.notes
    assert list(source(kind, FRAME, tmp_path, identifiers="keep")().inputs) == list(FRAME)[:-1]
    assert list(source(kind, FRAME, tmp_path, inputs=("name",))().inputs) == ["name"]
    assert "name" in source(kind, FRAME, tmp_path, columns={"name": "category"})().inputs
    assert "name" in source(kind, FRAME[:19], tmp_path)().inputs  # distinct by chance
    assert list(source(kind, FRAME[["name", "y"]], tmp_path)().inputs) == ["name"]  # nothing else
    assert "name" in source(kind, FRAME.assign(name=["a", *FRAME.name[:-1]]), tmp_path)().inputs or kind


def test_the_index_that_pandas_writes_is_left_out(tmp_path):
    FRAME[["t", "y"]].to_csv(tmp_path / "rows.csv")
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y")()
    assert list(rows.inputs) == ["t"]
    assert "left out, because they identify rows (data.source.identifiers): ''" in rows.notes


def test_a_column_that_equals_the_label_is_warned_of(tmp_path):
    for label in (FRAME.y, FRAME.city.where(FRAME.index > 0, "Riga")):
        rows = source("csv", FRAME[["t"]].assign(copy=label, other=label[::-1].to_numpy(), y=label), tmp_path)()
        [note] = [note for note in rows.notes if "equals the label" in note]
        assert note.startswith("warning: column 'copy' equals the label 'y' in every row; ")


def test_held_out_rows_that_repeat_training_rows_are_counted(tmp_path):
    frame = pd.DataFrame({"x": [1.5, 2.5, 1.5, 4], "w": list("abac"), "y": range(4)})
    frame["part"] = ["train", "train", "test", "validation"]
    notes = load(DataConfig(source("csv", frame, tmp_path), SplitConfig(column="part"))).notes
    assert "warning: 1 of 1 test rows have the inputs of a training row" in notes
    frame.loc[2, "w"] = "c"
    notes = load(DataConfig(source("csv", frame, tmp_path), SplitConfig(column="part"))).notes
    assert not [note for note in notes if "training row" in note]
