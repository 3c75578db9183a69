"""Tables in CSV, in Parquet and from a function: the same rows, and the same refusals by name."""

import datetime
import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.datasets import load_diabetes

from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.function import Function
from ortpipe.data.sources.parquet import Parquet
from ortpipe.errors import ConfigError, DataError

FRAME = load_diabetes(as_frame=True, scaled=False).frame[["age", "bmi", "target"]]
FRAME = FRAME.assign(
    city=np.random.default_rng(0).choice(["Rome", "Oslo", "Łódź"], len(FRAME)),
    vip=np.random.default_rng(1).random(len(FRAME)) < 0.3,
)


def made(frame):
    """Return what the function source of these tests returns."""
    return frame


def written(kind, frame, folder, name="rows", **settings):
    """Return a source of a table, which lies in a file of this kind."""
    settings = {"label": "target", **settings}
    if kind == "function":
        return Function(function="data.test_tables:made", params={"frame": frame}, **settings)
    path = folder / f"{name}.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, row_group_size=100)
    return {"csv": Csv, "parquet": Parquet}[kind](path=str(path), **settings)


@pytest.fixture(params=["csv", "parquet", "function"])
def table(request, tmp_path):
    """Return a function from a frame and settings to its source."""
    return lambda frame=FRAME, **settings: written(request.param, frame, tmp_path, **settings)


def test_columns_come_in_the_order_that_is_asked_for_and_keep_their_type(table):
    frame = FRAME.assign(rank=np.arange(len(FRAME)))
    rows = table(frame, inputs={"a": ("rank",), "b": ("bmi", "age")}, sample_weight="age")()
    assert rows.inputs["a"].dtype == np.int64
    np.testing.assert_array_equal(rows.inputs["b"], FRAME[["bmi", "age"]])
    np.testing.assert_array_equal(rows.sample_weight, FRAME.age)


def test_a_column_that_an_input_names_twice_stands_in_it_twice(table):
    rows = table(inputs={"X": ("bmi", "age", "bmi")})()
    assert rows.columns["X"] == ("bmi", "age", "bmi")
    np.testing.assert_array_equal(rows.inputs["X"], FRAME[["bmi", "age", "bmi"]])
    assert rows.notes[0] == "input X of 3 columns: bmi, age, bmi; label target"


def test_labels_may_be_words_several_columns_or_truth_values(table):
    assert sorted(set(table(label="city")().label.tolist())) == ["Oslo", "Rome", "Łódź"]
    assert table(label=("age", "bmi"))().label.shape == (len(FRAME), 2)
    np.testing.assert_array_equal(table(label="vip")().label, FRAME.vip.astype(int))


def test_the_same_table_gives_the_same_rows_from_every_kind_of_source(tmp_path):
    digests = {kind: written(kind, FRAME, tmp_path)().digest() for kind in ("csv", "parquet")}
    assert digests["csv"] == digests["parquet"]
    own = written("function", FRAME, tmp_path)()
    for name, array in written("csv", FRAME, tmp_path)().inputs.items():
        np.testing.assert_array_equal(own.inputs[name], array)


def with_value(row, column, value):
    frame = FRAME.astype({column: object}) if isinstance(value, str) or value is None else FRAME.copy()
    frame.loc[row, column] = value
    return frame


ARRAY = {"inputs": {"X": ("age", "bmi")}}
BAD = {
    "nothing for a number": (with_value(7, "age", np.nan), ARRAY, "(nothing|nan) in column 'age', (row 7|line 9) of"),
    "infinity": (with_value(8, "bmi", np.inf), {}, "inf in column 'bmi', (row 8|line 10) of"),
    "words in an array": (FRAME, {"inputs": {"X": ("age", "city")}}, "words in column 'city' of input 'X'"),
    "an empty text": (with_value(9, "city", ""), {"label": "city"}, "nothing in column 'city', (row 9|line 11) of"),
    "a label without a value": (
        with_value(3, "target", np.nan),
        {},
        "(nothing|nan) in column 'target', (row 3|line 5) of",
    ),
    "a missing label column": (FRAME, {"label": "targte"}, r"label must name columns(.|\n)*Did you mean 'target'"),
    "a missing weight column": (FRAME, {"sample_weight": "wage"}, r"sample_weight(.|\n)*Did you mean 'age'"),
    "a missing input column": (FRAME, {"inputs": {"X": ("ag",)}}, r"inputs\.X(.|\n)*'ag'(.|\n)*Did you mean 'age'"),
    "weights in words": (FRAME, {"sample_weight": "city"}, "weights(.|\n)*numbers(.|\n)*'city'"),
    "several labels in words": (FRAME, {"label": ("age", "city")}, "numbers(.|\n)*'city'"),
    "dates": (FRAME.assign(day=datetime.date(2020, 1, 1)), {"label": "day"}, "'day' of .*, of type date32"),
    "labels alone": (FRAME[["target"]], {}, "at least one column of features"),
    "no rows": (FRAME[:0].astype({"city": str}), {"inputs": {"X": ("age",)}}, "at least one row"),
}


@pytest.mark.parametrize(("frame", "settings", "message"), BAD.values(), ids=BAD)
def test_a_table_that_cannot_be_trained_on_is_refused_by_name(table, frame, settings, message):
    with pytest.raises(DataError, match=message):
        table(frame, **settings)()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": ()}, r"^label must name at least one column"),
        ({"delimiter": ";;"}, r"one ASCII character(.|\n)*';;'"),
        ({"delimiter": "é"}, "one ASCII character"),
        ({"delimiter": '"'}, "no quote or line break"),
        ({"inputs": {}}, "at least one column"),
        ({"inputs": {"X": ()}}, "at least one column"),
        ({"encode": "keep"}, r"no setting 'encode'(.|\n)*fix: Valid: categorical, "),
    ],
)
def test_settings_that_name_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Csv(**{"path": "rows.csv", "label": "target", **settings})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_folder_is_read_in_the_order_of_its_names_with_the_words_of_all(kind, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / ".hidden.csv").write_text("not,rows")
    (folder / "notes.txt").write_text("nothing")
    for name, part in (("b", FRAME[FRAME.city != "Oslo"]), ("a", FRAME[FRAME.city == "Oslo"])):
        source = written(kind, part, folder, name)
    rows = type(source)(path=str(folder), label="target")()
    expected = pd.concat([FRAME[FRAME.city == "Oslo"], FRAME[FRAME.city != "Oslo"]])
    np.testing.assert_array_equal(rows.label, expected.target)
    assert set(rows.inputs["city"]) == {"Oslo", "Rome", "Łódź"}


def test_numbers_that_are_whole_in_one_file_and_not_in_another_are_one_column(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text("x,y\n1.5,0\n")
    assert Csv(path=str(tmp_path), label="y")().inputs["x"].tolist() == [1, 2, 1.5]


def test_files_that_disagree_are_refused_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    (tmp_path / "b.csv").write_text("x,y\none,0\n")
    with pytest.raises(DataError, match=r"'x' is text in .*b\.csv, numbers in .*a\.csv"):
        Csv(path=str(tmp_path), label="y")()
    (tmp_path / "b.csv").write_text("z,y\n1,0\n")
    with pytest.raises(DataError, match=r"b\.csv without 'x'"):
        Csv(path=str(tmp_path), label="y")()


FILES = {
    "a ragged line": ("a,y\n1,2\n3\n", r"line 3 of .*rows\.csv has 1: 3"),
    "twelve of them": (
        "a,y\n1,2\n" + "3\n4,5\n" * 12,
        r"line 3 of .*has 1: 3; line 5 of .*; line 21 of .*rows\.csv has 1: 3, and 2 more",
    ),
    "a line too long": ("a,y\n1,2\n3,4,5\n", r"as many fields as the first \(2\)(.|\n)*line 3 of .*rows.csv has 3"),
    "one name twice": ("a,a,y\n1,2,3\n", "'a' twice in .*rows.csv"),
    "nothing": ("", "rows.csv: Empty CSV file"),
    "a line of names alone": ("a,y\n", "at least one row"),
    "a missing label": ("a,y\n1,2\n2,NA\n", "nothing in column 'y', line 3 of"),
    "bytes that are no text": (
        b"a,y\n\xff,2\n",
        r"b'.xff,2' is not utf-8, line 2 of .*rows.csv(.|\n)*Set encoding=cp1252",
    ),
}


@pytest.mark.parametrize(("content", "message"), FILES.values(), ids=FILES)
def test_a_csv_file_that_holds_no_table_is_refused_by_its_line(content, message, tmp_path):
    (tmp_path / "rows.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        Csv(path=str(tmp_path / "rows.csv"), label="y")()


def test_a_folder_may_hold_packed_files_with_tabs(tmp_path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"x\ty\n1,5\t2\n"))
    (tmp_path / "b.tsv").write_bytes(b"x\ty\n2,5\t4\n")
    rows = Csv(path=str(tmp_path), label="y")()
    assert (rows.inputs["x"].tolist(), rows.label.tolist()) == ([1.5, 2.5], [2, 4])


def test_csv_files_may_be_packed_have_another_delimiter_and_no_names(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"1;2\n3;4\n"))
    rows = Csv(path=str(path), label="y", delimiter=";", names=("x", "y"))()
    assert (rows.inputs["x"].tolist(), rows.label.tolist()) == ([1, 3], [2, 4])


@pytest.mark.parametrize(("mark", "encoding"), [(";", "utf-8"), ("\t", "utf-16"), ("|", "cp1252"), (",", "utf-8-sig")])
def test_a_delimiter_is_recognized_by_the_first_line_and_printed(mark, encoding, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f'"x, old{mark}s"{mark}z{mark}y\n1{mark}2{mark}3\n', encoding=encoding)
    rows = Csv(path=str(path), label="y", encoding=encoding)()
    assert (list(rows.inputs), rows.label.tolist()) == ([f"x, old{mark}s", "z"], [3])
    assert (f"fields are separated by {mark!r}" in rows.notes) == (mark != ",")


def test_a_tab_is_written_as_a_command_line_can(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x\ty\n1\t2\n")
    assert Csv(path=str(path), label="y", delimiter="\\t")().label.tolist() == [2]


def test_words_and_labels_that_differ_by_capitals_or_spaces_alone_are_said(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("city,y\nRome,yes\nrome,Yes\nOslo ,no\nOslo,no\n")
    notes = Csv(path=str(path), label="y")().notes
    assert "column 'city': 'Rome' and 'rome' (1 more such pairs) differ only by case or spaces, but count as" in str(
        notes
    )
    assert "column 'y': 'yes' and 'Yes' differ only by case or spaces, but count as different words" in str(notes)


def test_a_number_beyond_float32_is_said_to_become_infinite(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1e40,1\n2,2\n")
    [note] = [note for note in Csv(path=str(path), label="y")().notes if "float32" in note]
    assert note.endswith("becomes infinite in float32, whose maximum is 3.4e38: scale the column")


@pytest.mark.parametrize("source", [Csv, Parquet])
def test_a_path_without_files_is_refused(source, tmp_path):
    with pytest.raises(DataError, match="must exist"):
        source(path=str(tmp_path / "away"), label="y")()
    with pytest.raises(DataError, match=r"end in \.(csv|parquet)"):
        source(path=str(tmp_path), label="y")()


def test_a_damaged_parquet_file_is_refused_by_name(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"readable(.|\n)*rows\.parquet"):
        Parquet(path=str(path), label="y")()


def test_the_index_of_a_frame_is_no_feature(tmp_path):
    source = written("parquet", FRAME[FRAME.age > 40], tmp_path)
    assert "__index_level_0__" in parquet.read_schema(source.path).names
    assert list(source().inputs) == ["age", "bmi", "city", "vip"]


TYPES = {
    "lists": (pa.array([[1], [2]]), r"'x' of .*, of type list<.*int64>"),
}


@pytest.mark.parametrize(("column", "message"), TYPES.values(), ids=TYPES)
def test_types_that_are_neither_numbers_nor_text_are_named(column, message, tmp_path):
    parquet.write_table(pa.table({"x": column, "y": [0, 1]}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=message):
        Parquet(path=str(tmp_path / "rows.parquet"), label="y")()


KINDS = {
    "dictionary": (pa.array(["b", "a", "b"]).dictionary_encode(), ["b", "a", "b"]),
    "large text": (pa.array(["b", "a", "b"], pa.large_string()), ["b", "a", "b"]),
    "decimals": (pa.array([1, 2, 3]).cast(pa.decimal128(21, 1)), [1, 2, 3]),
    "halves": (pa.array(np.array([1, 2, 3], np.float16)), [1, 2, 3]),
    "bytes": (pa.array([1, 2, 3], pa.uint8()), [1, 2, 3]),
}


@pytest.mark.parametrize(("column", "expected"), KINDS.values(), ids=KINDS)
def test_every_type_of_numbers_and_text_is_read(column, expected, tmp_path):
    parquet.write_table(pa.table({"x": column, "y": [0, 1, 2]}), tmp_path / "rows.parquet")
    np.testing.assert_array_equal(Parquet(path=str(tmp_path / "rows.parquet"), label="y")().inputs["x"], expected)
