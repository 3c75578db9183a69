"""Columns of a table as inputs of their own: numbers, words and dates as they stand, of which values may be missing."""

import datetime
import itertools
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from data.test_tables import written
from onnx import parser

from ortpipe import Rows, SplitConfig, convert, split
from ortpipe.data.raw_columns import ISO, RawColumn
from ortpipe.data.rows import Data
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.function import Function
from ortpipe.data.sources.parquet import Parquet
from ortpipe.errors import ConvertError, DataError

DAYS = [datetime.date(2013, 1, 31), None, datetime.date(2012, 2, 29)]
FRAME = pd.DataFrame(
    {
        "age": [31.5, np.nan, 40.0],
        "rooms": [3, 1, 2],
        "city": ["Łódź", None, "Rome"],
        "vip": [True, False, True],
        "day": DAYS,
        "seen": pd.to_datetime(["2013-01-31 05:00:00", "1999-12-31 23:59:59.5", None], format="ISO8601"),
        "target": [0.0, 1.0, 2.0],
    }
)
EXPECTED = {
    "age": [31.5, np.nan, 40],
    "rooms": [3.0, 1.0, 2.0],
    "city": ["Łódź", "", "Rome"],
    "vip": ["true", "false", "true"],
    "day": ["2013-01-31", "", "2012-02-29"],
    "seen": ["2013-01-31T05:00:00", "1999-12-31T23:59:59.500000", ""],
}


def made(frame):
    return frame


@pytest.mark.parametrize("kind", ["csv", "parquet", "function"])
def test_each_column_is_an_input_as_it_stands(kind, tmp_path):
    rows = written(kind, FRAME, tmp_path)()
    assert list(rows.inputs) == list(EXPECTED)
    for name, values in EXPECTED.items():
        np.testing.assert_array_equal(rows.inputs[name], np.array(values, None if name in ("age", "rooms") else object))
    kinds = {name: kept.kind for name, kept in rows.kept.items()}
    assert kinds == {"age": "number", "rooms": "number", "city": "word", "vip": "word", "day": "date", "seen": "date"}
    assert [kept.missing for kept in rows.kept.values()] == [1, 0, 1, 0, 1, 1]
    assert rows.notes[0] == (
        "6 columns: numbers age (1 missing), rooms; words city (1 missing), vip; "
        "dates day (1 missing), seen (1 missing); label target"
    )


def test_a_list_chooses_columns_and_a_mapping_makes_arrays(tmp_path):
    rows = written("csv", FRAME, tmp_path, inputs=("city", "rooms"))()
    assert list(rows.inputs) == ["city", "rooms"]
    rows = written("csv", FRAME, tmp_path, inputs={"city": ("city",), "X": ("rooms", "rooms")})()
    assert rows.inputs["city"].tolist() == EXPECTED["city"]
    assert (rows.columns, rows.kept) == ({"X": ("rooms", "rooms")}, {"city": RawColumn("word", 1)})
    rows = written("csv", FRAME[["rooms", "target"]], tmp_path, inputs={"X": None})()
    assert (rows.inputs["X"].tolist(), rows.kept) == ([[3], [1], [2]], {})


def test_marks_of_missing_values_and_words_that_look_like_dates_are_as_the_user_says(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,c,day,y\n1,?,x,2013-01-31,0\n?,2,?,?,1\n")
    source = {"path": str(tmp_path / "rows.csv"), "label": "y", "missing": ("?",)}
    rows = Csv(**source)()
    assert [rows.inputs[name].tolist() for name in ("c", "day")] == [["x", ""], ["2013-01-31", ""]]
    np.testing.assert_array_equal(np.stack([rows.inputs["a"], rows.inputs["b"]]), [[1, np.nan], [np.nan, 2]])
    assert rows.kept["day"].kind == "date"
    assert Csv(**source, categorical=("day",))().kept["day"] == RawColumn("word", 1)


def test_words_that_other_readers_take_for_gaps_or_numbers_are_told(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,c,y\nNA,3,3,0\nNone,-5,3.0,1\nx,,2,1\n")
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y", categorical=("b", "c"))()
    assert rows.kept["a"] == RawColumn("word", marks=("NA", "None"))
    assert rows.kept["b"] == RawColumn("word", 1, whole=True)
    assert rows.kept["c"] == RawColumn("word")
    [note] = [note for note in rows.notes if "read as a word" in note]
    assert re.search(r"'a': 'NA' in line 2 of \S+rows\.csv, 2 times in all, is read as a word", note)
    assert "pandas, and servers that parse CSV with it, read it as one" in note


def test_times_are_those_of_utc_where_a_column_has_a_zone(tmp_path):
    seen = pa.array([datetime.datetime(2013, 1, 31, 10)], pa.timestamp("us", tz="America/New_York"))
    frame = pa.table({"seen": seen, "y": [0]})
    rows = Function(function="data.test_raw_columns:made", params={"frame": frame})()
    assert rows.inputs["seen"].tolist() == ["2013-01-31T10:00:00Z"]


def test_dates_are_the_days_of_pythons_calendar():
    for year, month, day in itertools.product((1900, 2000, 2011, 2012), range(14), range(33)):
        try:
            is_day = bool(datetime.date(year, month, day))
        except ValueError:
            is_day = False
        assert bool(re.fullmatch(ISO, f"{year}-{month:02}-{day:02}")) == is_day


def test_a_column_of_text_that_holds_dates_of_iso_8601_is_one_of_dates():
    frame = FRAME[["rooms", "target"]].assign(day=["2013-01-31", "", "2012-02-29T05:00Z"])
    rows = Function(function="data.test_raw_columns:made", params={"frame": frame}, label="target")()
    assert rows.kept["day"] == RawColumn("date", 1)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["2013-01-31", "soon", "2012-02-29"], r"not dates year-month-day: 'soon' in row 1"),
        (["31.1.2013", "30.2.2013", ""], r"ISO 8601(.|\n)*'2013-02-30' in row 1"),
        (["1.5", "2", "many"], r"'many' in row 2"),
        ([1.0, np.inf, np.nan], r"inf in column 'new', row 1"),
    ],
)
def test_columns_of_mixed_content_are_refused_by_name(column, message):
    params = {"frame": FRAME[["target"]].assign(new=column)}
    with pytest.raises(DataError, match=message):
        Function(function="data.test_raw_columns:made", params=params, label="target")()


def test_a_column_without_a_name_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text(",a,y\n0,1,2\n1,3,4\n")
    with pytest.raises(DataError, match="index=False"):
        Csv(path=str(tmp_path / "t.csv"), label="y")()


def test_labels_are_never_missing(tmp_path):
    with pytest.raises(DataError, match="in column 'age', line 3") as refusal:
        written("csv", FRAME, tmp_path, label="age")()
    assert "by itself" not in str(refusal.value)
    with pytest.raises(DataError, match=r"in column 'age', line 3(.|\n)*by itself may hold missing values"):
        written("csv", FRAME[["age", "target"]], tmp_path, inputs={"X": None})()


def test_a_word_that_is_most_likely_a_missing_value_is_said():
    frame = FRAME[["target"]].assign(city=["NA", "Rome", "Oslo"])
    rows = Function(function="data.test_raw_columns:made", params={"frame": frame}, label="target")()
    assert "'NA' in row 0" in rows.notes[1]


def test_rows_that_stream_are_those_in_memory(tmp_path):
    frame = pd.concat([FRAME] * 40, ignore_index=True).assign(row=np.arange(120))
    frame.loc[100, "city"] = "a word much longer than those in front of it"
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=7)
    given = {"path": str(tmp_path / "rows.parquet"), "label": "target"}
    streamed, held = (split(Parquet(**given, stream=stream)(), SplitConfig(seed=1)) for stream in (True, False))
    assert streamed.train.on_disk
    for ours, theirs in zip((streamed.train, streamed.test), (held.train, held.test), strict=True):
        assert ours.sample().digest() == theirs.sample().digest()
    again = Parquet(**given, stream=True)()
    assert again.digest() == Parquet(**given, stream=True)().digest()
    frame.loc[3, "age"] = 0
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=7)
    assert Parquet(**given, stream=True)().digest() != again.digest()


def model(text):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


IMPUTED = model(
    "g (float[N] age, float[N] rooms) => (float[N, 1] y) <float[2, 1] w = {1.0, 2.0}, float zero = {0}, "
    "int64[1] one = {1}> { m = IsNaN (age)  a = Where (m, zero, age)  b = Unsqueeze (a, one) "
    "c = Unsqueeze (rooms, one)  x = Concat <axis = 1> (b, c)  y = MatMul (x, w) }"
)
PLAIN = model(
    "g (float[N] age, float[N] rooms) => (float[N, 1] y) <float[2, 1] w = {1.0, 2.0}, int64[1] one = {1}> "
    "{ b = Unsqueeze (age, one)  c = Unsqueeze (rooms, one)  x = Concat <axis = 1> (b, c)  y = MatMul (x, w) }"
)


def test_a_missing_value_is_refused_where_the_model_has_no_way_to_deal_with_it(tmp_path):
    data = Data(written("csv", FRAME, tmp_path)())
    artifact = convert(IMPUTED, data=data)
    assert "does not read city, vip, day, seen of the data" in artifact.facts.lineage[-1]["notes"]
    with pytest.raises(ConvertError, match=r"1 row without a value in column 'age'"):
        convert(PLAIN, data=data)


def test_nan_in_rows_of_ones_own_is_refused_unless_they_say_what_it_is():
    age = np.array([1.0, np.nan])
    with pytest.raises(DataError, match="finite"):
        Rows({"age": age}, [0, 1])
    assert Rows({"age": age}, [0, 1], kept={"age": RawColumn("number", 1)}).kept


def test_numbers_are_no_text_for_an_input_of_text(tmp_path):
    words = model(
        "g (string[N] rooms) => (float[N, 1] y) <int64[1] one = {1}, float[1, 1] w = {1.0}> "
        "{ f = Cast <to = 1> (rooms)  x = Unsqueeze (f, one)  y = MatMul (x, w) }"
    )
    with pytest.raises(DataError, match=r"takes text(.|\n)*rooms(.|\n)*categorical=\[rooms\]"):
        convert(words, data=Data(written("csv", FRAME, tmp_path)()))
