"""Numbers with other values among them, codes, marks of missing values, encodings: refused, said or chosen."""

import shlex

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from pyarrow import parquet
from sklearn.datasets import load_diabetes

from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.function import Function
from ortpipe.data.sources.npz import Npz
from ortpipe.data.sources.parquet import Parquet
from ortpipe.data.split import split
from ortpipe.errors import ConfigError, DataError

FRAME = load_diabetes(as_frame=True, scaled=False).frame[["age", "bmi", "target"]]
KINDS = ("csv", "parquet", "function")


def made(frame):
    return frame


def source(kind, frame, folder, **settings):
    settings = {"label": "target", **settings}
    if kind == "function":
        return Function(function="data.test_words:made", params={"frame": frame}, **settings)
    path = folder / f"rows.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, row_group_size=100)
    return {"csv": Csv, "parquet": Parquet}[kind](path=str(path), **settings)


def words(rows):
    """Return the distinct words of the columns of words."""
    return {name: tuple(sorted(set(rows.inputs[name]))) for name, of in rows.kept.items() if of.kind == "word"}


def at(kind, row):
    return f"line {row + 2} of" if kind == "csv" else f"row {row} of"


def with_cells(column, cells):
    frame = FRAME.astype({column: str})
    for row, cell in cells.items():
        frame.loc[row, column] = cell
    return frame


BAD = {
    "a word": {60: "foo"},
    "a question mark": {60: "?"},
    "a zero byte": {60: "1\x00"},
    "a dash": {60: "-"},
    "a decimal comma": {60: "1,5"},
    "a percentage": {60: "12 %"},
    "a mark in the second row group": {160: "?"},
}


@pytest.mark.parametrize(("kind", "column"), [("csv", "target"), *((kind, "age") for kind in KINDS)])
@pytest.mark.parametrize("cells", BAD.values(), ids=BAD)
def test_one_bad_cell_in_a_column_of_numbers_is_refused_by_row_and_value(kind, column, cells, tmp_path):
    [(row, cell)] = cells.items()
    with pytest.raises(DataError) as refusal:
        source(kind, with_cells(column, cells), tmp_path)()
    message = str(refusal.value)
    assert f"1 of 442 values of column '{column}' are not numbers: {cell!r} in {at(kind, row)}" in message
    assert "missing=['?']" in message
    assert f" categorical=[{column}]" in message


def test_bad_cells_are_counted_and_the_first_are_shown_even_where_each_value_is_another(tmp_path):
    count = 12_000  # more values than a column of text may have
    frame = pd.DataFrame({"x": np.arange(count).astype(str), "target": 1.0})
    frame.loc[::1000, "x"] = "?"
    with pytest.raises(
        DataError, match=r"12 of 12,000 values.*'\?' in line 2 .*'\?' in line 1002 .*2002 .*, and 2 more"
    ):
        source("csv", frame, tmp_path)()


@pytest.mark.parametrize("kind", KINDS)
def test_marks_of_missing_values_are_missing_in_numbers_and_in_text(kind, tmp_path):
    frame = with_cells("age", {7: "?"})
    if kind == "csv":
        assert np.flatnonzero(np.isnan(source(kind, frame, tmp_path, missing=("?",))().inputs["age"])).tolist() == [7]
    city = FRAME.assign(city=["?" if n == 9 else "Rome" for n in range(len(FRAME))])
    assert words(source(kind, city, tmp_path)()) == {"city": ("?", "Rome")}
    assert words(source(kind, city, tmp_path, missing=("?",))()) == {"city": ("", "Rome")}
    with pytest.raises(DataError, match=r"a value in every row(.|\n)*'\?' in column 'city', (row 9|line 11) of"):
        source(kind, city, tmp_path, missing=("?",), label="city")()


def test_a_bad_cell_among_row_weights_or_one_of_several_labels_is_named(tmp_path):
    frame = with_cells("age", {60: "foo"})
    with pytest.raises(DataError, match=r"column 'age' are not numbers: 'foo' in line 62 of"):
        source("csv", frame, tmp_path, sample_weight="age")()
    with pytest.raises(DataError, match=r"column 'age' are not numbers: 'foo' in line 62 of"):
        source("csv", frame, tmp_path, label=("target", "age"))()


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_numbers_most_of_which_are_missing_is_no_column_of_words(kind, tmp_path):
    frame = FRAME.assign(dose=[f"{n}.5" if n % 10 == 0 else "?" for n in range(len(FRAME))])
    with pytest.raises(
        DataError, match=r"397 of 442 values of column 'dose' are not numbers: '\?' in (row 1|line 3) of"
    ):
        source(kind, frame, tmp_path)()


@pytest.mark.parametrize("column", ["größe", "price ($)", "a=b", "it's", 'the "size"', "[z]", "1", "null"])
def test_the_way_out_works_as_it_stands_whatever_a_columns_name(column, tmp_path):
    frame = FRAME.assign(**{column: ["38", "40", "L"] * 147 + ["L"]})
    with pytest.raises(DataError) as refusal:
        source("csv", frame, tmp_path)()
    [argument] = shlex.split(str(refusal.value).rpartition("list it: ")[2].removesuffix("."))
    said = OverridesParser.create().parse_override(argument).value()
    assert OmegaConf.create({"said": said}).said == [column]
    assert words(source("csv", frame, tmp_path, categorical=(column,))()) == {column: ("38", "40", "L")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_with_few_numbers_is_text(kind, tmp_path):
    frame = FRAME.assign(size=["S", "M", "12"] * 147 + ["S"])
    assert words(source(kind, frame, tmp_path)()) == {"size": ("12", "M", "S")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_is_text_where_the_user_says_so_the_same_from_every_source(kind, tmp_path):
    frame = FRAME.assign(month=np.arange(len(FRAME)) % 12 + 1)
    rows = source(kind, frame, tmp_path, categorical=("month",))()
    assert rows.inputs["month"].tolist() == frame.month.astype(str).tolist()
    mixed = source(kind, with_cells("age", {60: "foo"}), tmp_path, categorical=("age",))()
    assert "foo" in words(mixed)["age"]
    with pytest.raises(DataError, match=r"categorical must name columns(.|\n)*Did you mean .month'"):
        source(kind, frame, tmp_path, categorical=("mnth",))()


def test_lists_are_no_words_whatever_the_user_says(tmp_path):
    frame = FRAME.assign(tags=[["a"]] * len(FRAME))
    for categorical in ((), ("tags",)):
        with pytest.raises(DataError, match=r"column 'tags' of .*, of type list"):
            source("parquet", frame, tmp_path, categorical=categorical)()


def test_a_column_that_is_words_in_one_file_only_may_be_words_in_all(tmp_path):
    FRAME.assign(size=38).to_csv(tmp_path / "a.csv", index=False)
    FRAME.assign(size="L").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(DataError, match=r"list it: categorical=\[size\]"):
        Csv(path=str(tmp_path), label="target")()
    assert words(Csv(path=str(tmp_path), label="target", categorical=("size",))()) == {"size": ("38", "L")}


def test_labels_may_be_numbers_that_are_words(tmp_path):
    frame = FRAME.assign(kind=np.arange(len(FRAME)) % 3)
    assert source("csv", frame, tmp_path, label="kind", categorical=("kind",))().label[:3].tolist() == ["0", "1", "2"]


def test_text_that_holds_numbers_alone_stays_text_where_its_type_says_so_and_that_is_said(tmp_path):
    frame = FRAME.assign(grade=pd.Series(["1", "2"] * 221))
    rows = source("parquet", frame, tmp_path)()
    assert words(rows) == {"grade": ("1", "2")}
    assert "column 'grade' has type text but holds only numbers" in rows.notes[1]
    assert source("parquet", FRAME.assign(target=frame.grade), tmp_path)().label[:2].tolist() == ["1", "2"]


@pytest.mark.parametrize("day", ["2013-01-{:02} 05:00:00", "{:02}.01.2013"])
@pytest.mark.parametrize("kind", KINDS)
def test_dates_are_no_categories_though_a_bad_cell_makes_them_text(kind, day, tmp_path):
    frame = FRAME.assign(day=[day.format(n % 28 + 1) for n in range(len(FRAME))])
    frame.loc[5, "day"] = "foo"
    with pytest.raises(DataError, match=r"column 'day' are not dates (.|\n)*'foo'(.|\n)*categorical=\[day\]"):
        source(kind, frame, tmp_path)()


def test_codes_that_lose_their_leading_zeros_are_said_and_kept_as_words(tmp_path):
    (tmp_path / "rows.csv").write_text("zip,month,y\n90210,01,1\n01234,12,2\n", encoding="utf-8")
    rows = Csv(path=str(tmp_path / "rows.csv"), label="y")()
    assert rows.inputs["zip"].tolist() == [90210, 1234]
    assert [note for note in rows.notes if "01234 as 1234" in note and "data.source.categorical=[zip]" in note]
    coded = Csv(path=str(tmp_path / "rows.csv"), label="y", categorical=("zip", "month"))()
    assert words(coded) == {"zip": ("01234", "90210"), "month": ("01", "12")}
    assert not [note for note in coded.notes if "01234" in note]


@pytest.mark.parametrize("kind", KINDS)
def test_which_columns_became_which_inputs_is_said(kind, tmp_path):
    frame = FRAME.assign(city=["Rome", "Oslo"] * 221, vip=True)
    said = "4 columns: numbers age, bmi; words city, vip; label target"
    assert source(kind, frame, tmp_path)().notes == (said,)
    own = source(kind, frame, tmp_path, inputs={"city": ("city",), "b": ("age", "bmi")})()
    assert own.notes == ("1 column: words city; input b of 2 columns: age, bmi; label target",)


def test_notes_reach_the_data_of_a_run_streamed_too(tmp_path):
    for stream in (False, True):
        own = source("parquet", FRAME.assign(code=2**24 + 1 + np.arange(len(FRAME))), tmp_path, stream=stream)
        first, second, *more = load(DataConfig(own, SplitConfig(test=0.25))).notes
        assert ["are in an unnamed temporary file in" in note for note in more] == [True] * stream
        assert first == "3 columns: numbers age, bmi, code; label target"
        assert "column 'code', row 0 of " in second
        assert "rows.parquet: 16777217 becomes 16777216 in float32" in second


DIGITS = {
    "an input": ({"X": np.array([[1, 2], [3, 2**24 + 1]])}, np.ones(2), None, "input 'X', column 1, row 1: 16777217"),
    "whole floats": ({"X": np.array([2.0**24 + 1, 1])}, np.ones(2), None, "input 'X', row 0: 16777217"),
    "labels": ({"X": np.ones((2, 1))}, np.array([1, -(2**30) - 1]), None, "label, row 1: -1073741825"),
    "row weights": ({"X": np.ones((2, 1))}, np.ones(2), np.array([1, 2**60 + 1]), "sample_weight, row 1: 11529215046"),
    "no sign": ({"X": np.array([0, 2**64 - 1], np.uint64)}, np.ones(2), None, "input 'X', row 1: 18446744073709551615"),
}


@pytest.mark.parametrize(("inputs", "label", "weight", "said"), DIGITS.values(), ids=DIGITS)
def test_whole_numbers_that_float32_does_not_hold_are_said(inputs, label, weight, said, tmp_path):
    [note] = split(Rows(inputs, label, weight), SplitConfig(test=0)).notes
    assert note.startswith(said)
    np.savez(tmp_path / "rows.npz", **inputs, y=label, **({} if weight is None else {"w": weight}))
    own = Npz(path=str(tmp_path / "rows.npz"), sample_weight=None if weight is None else "w")
    [stored] = load(DataConfig(own, SplitConfig(test=0))).notes
    assert f"of {tmp_path}" in stored


EXACT = {
    "held exactly": np.array([2**24, 2**25, -(2**31)]),
    "unsigned": np.array([2**63, 1], np.uint64),
    "the lowest": np.array([-(2**63), 1]),
    "measured": np.array([1e9 + 1, 0.5, 3e9 + 1]),
    "of float32": np.array([1e9], np.float32),
    "words": np.array(["16777217"]),
}


@pytest.mark.parametrize("array", EXACT.values(), ids=EXACT)
def test_other_numbers_say_nothing(array):
    rows = Rows({"X": np.ones((len(array), 1))}, array)
    assert split(rows, SplitConfig(test=0)).notes == ()


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8-sig"])
def test_a_csv_file_may_have_another_encoding(encoding, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("größe,stadt,y\r\n1,Köln,2\r\n3,Rom,4\r\n", encoding=encoding, newline="")
    rows = Csv(path=str(path), label="y", encoding=encoding)()
    assert words(rows) == {"stadt": ("Köln", "Rom")}
    if encoding != "utf-8-sig":
        with pytest.raises(DataError, match=r"is not utf-8(.|\n)*Set encoding=(cp1252|utf-16)"):
            Csv(path=str(path), label="y")()


def test_an_encoding_that_does_not_fit_or_does_not_exist_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"b'gr.xf6.xdfe,y' is not utf-8, line 1 of .*rows.csv"):
        Csv(path=str(path), label="y")()
    with pytest.raises(DataError, match="is not utf-16"):
        Csv(path=str(path), label="y", encoding="utf-16")()
    with pytest.raises(ConfigError, match=r"encoding(.|\n)*latin1x"):
        Csv(path=str(path), label="y", encoding="latin1x")


def test_a_frame_of_mixed_objects_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"values of one type(.|\n)*test_words:made"):
        source("function", FRAME.assign(x=[1, "a"] * 221), tmp_path)()


def test_a_dictionary_of_numbers_in_text_is_one_that_somebody_chose(tmp_path):
    table = pa.table({"x": pa.array(["1", "2", "x"]).dictionary_encode(), "target": [1.0, 2, 3]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert words(Parquet(path=str(tmp_path / "rows.parquet"), label="target")()) == {"x": ("1", "2", "x")}
