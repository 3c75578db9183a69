"""Money, percent, grouped digits, dates, yes and no: read from all rows of a column, or by its setting."""

import datetime
import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.csv import Csv
from ortpipe.data.sources.function import Function
from ortpipe.data.written.formats import FORMATS, is_format, pattern_of, steps_of
from ortpipe.data.written.readings import CURRENCIES, FORMS, TextReading, date, number
from ortpipe.data.written.table import convert, wrong_rows
from ortpipe.errors import ConfigError, DataError


def made(frame):
    return frame


def read(tmp_path, cells, **settings):
    """Return the rows of a file with a column `c` of these cells, separated by tabs."""
    lines = ["c\tx\ty", *(f"{cell}\t{n}\t{n % 2}" for n, cell in enumerate(cells))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Csv(path=str(tmp_path / "rows.csv"), label="y", **{"delimiter": "\t", **settings})()


COLUMNS = {
    "money": (["$221,900", "$ 1,538,000.50", "-$5", "($7)"], "money, $", [221900, 1538000.5, -5, -7]),
    "money behind": (["1.234,50 €", "3 €", "-2,5€"], "money, €, decimal comma", [1234.5, 3, -2.5]),
    "money that groups all its digits": (["$100,000", "$250,000"], "money, $", [100000, 250000]),
    "grouped": (["5,650", "770", "1,180"], "number", [5650, 770, 1180]),
    "percent": (["15.6%", "3 %", "-1%"], "percent", [15.6, 3, -1]),
    "decimal comma": (["1.234,5", "0,25", "7"], "number, decimal comma", [1234.5, 0.25, 7]),
    "grouped by spaces": (["1 234 567", "12", "1\u202f000"], "number", [1234567, 12, 1000]),
    "grouped by apostrophes": (["1'234.5", "7", "12"], "number", [1234.5, 7, 12]),
    "a typesetter's minus": (["−1.5", "2.5", "−3"], "number", [-1.5, 2.5, -3]),
    "missing values": (["1,000", "None", "N/A", "25", "999"], "number", [1000, np.nan, np.nan, 25, 999]),
    "American dates": (["10/13/2014", "2/5/2015", "12/31/1999"], "month/day/year", ["2014-10-13", "2015-02-05"]),
    "European dates": (["13.10.2014", "5.2.2015"], "day.month.year", ["2014-10-13", "2015-02-05"]),
    "with slashes": (["13/10/2014", "05/02/2015"], "day/month/year", ["2014-10-13", "2015-02-05"]),
    "with times": (["1/31/14 5:07 PM", "12/1/99 12:00 am"], "month/day/yy", ["2014-01-31 17:07", "1999-12-01 00:00"]),
    "with names": (["3 Mar 2014", "12 December 2015"], "day month year", ["2014-03-03", "2015-12-12"]),
    "packed": (["20141013T000000", "20150225T120000"], "yearmonthday", ["2014-10-13 00:00:00"]),
    "dates without leading zeros": (["2014-1-5", "NA", "2015-10-2"], "year-month-day", ["2014-01-05", ""]),
    "times of day": (["13:45", "9:05:36", "NA", "00:00"], "time of day", [13.75, 9.0933333333, np.nan, 0]),
    "times with am and pm": (["1:45 pm", "12:00AM", "12:30 p.m.", "11:15 am"], "time of day", [13.75, 0, 12.5, 11.25]),
    "yes and no": (["yes", "No", "", "YES"], "boolean", ["true", "false", "", "true"]),
    "Y and N": (["Y", "N", "Y"], "boolean", ["true", "false", "true"]),
    "T and F": (["T", "F", "t"], "boolean", ["true", "false", "true"]),
}


@pytest.mark.parametrize(("cells", "name", "values"), COLUMNS.values(), ids=COLUMNS)
def test_the_reading_follows_from_all_rows_and_is_printed(cells, name, values, tmp_path):
    rows = read(tmp_path, cells)
    [note] = [note for note in rows.notes if note.startswith("read as")]
    assert note.startswith(f"read as c: {name}")
    compare = np.testing.assert_allclose if rows.inputs["c"].dtype.kind == "f" else np.testing.assert_array_equal
    compare(rows.inputs["c"][: len(values)], values)
    assert rows.kept["c"].written["form"] in (*FORMS, *FORMATS, "%H:%M:%S", "%I:%M:%S %p", "")


WORDS = {
    "words": ["a", "b", "c"],
    "one side of yes and no": ["Y", "Y", ""],
    "letters of two families": ["y", "f", "y"],
    "sizes": ["S", "M", "12", "L"],
    "terms": ["36 months", "60 months", "36 months"],
    "codes": ["A-1,234", "B-5", "C-6"],
}


@pytest.mark.parametrize("cells", WORDS.values(), ids=WORDS)
def test_words_stay_words(cells, tmp_path):
    assert read(tmp_path, cells).inputs["c"].tolist() == cells


AMBIGUOUS = {
    "dates": (["01/02/2014", "03/04/2014"], ["2014-01-02", "2014-02-01", '{c: "%m/%d/%Y"}', '{c: "%d/%m/%Y"}']),
    "groups or decimals": (["1,234", "5,650"], ["1234", "1.234", '{c: "1,234.5"}', '{c: "1.234,5"}']),
    "points": (["€ 1.234", "€ 5.650"], ["1234", "1.234", '{c: "1,234.5"}', '{c: "1.234,5"}']),
}


@pytest.mark.parametrize(("cells", "shown"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_column_with_two_readings_stops_with_both_and_each_can_be_set(cells, shown, tmp_path):
    with pytest.raises(DataError, match="must have one reading") as error:
        read(tmp_path, cells)
    assert [text for text in shown if text not in str(error.value)] == []
    first, second = (read(tmp_path, cells, columns={"c": text[5:-2]}).inputs["c"][0] for text in shown[2:])
    assert {str(first).removesuffix(".0"), str(second).removesuffix(".0")} == set(shown[:2])


@pytest.mark.parametrize(
    ("other", "values"),
    [(("0.5", "1.5"), [1234, 5650]), (("0.5%", "1.5%"), [1234, 5650]), (("0,5", "1,5"), [1.234, 5.65])],
)
def test_decimals_elsewhere_in_the_file_decide_between_groups_and_decimals(other, values, tmp_path):
    (tmp_path / "rows.csv").write_text(f'c,x,y\n"1,234","{other[0]}",1\n"5,650","{other[1]}",0\n')
    assert Csv(path=str(tmp_path / "rows.csv"), label="y")().inputs["c"].tolist() == values


def test_decimals_of_both_kinds_decide_nothing(tmp_path):
    (tmp_path / "rows.csv").write_text('c,x,z,y\n"1,234",0.5,"0,5",1\n"5,650",1.5,"1,5",0\n')
    with pytest.raises(DataError, match=r"column 'c', in which every row has several"):
        Csv(path=str(tmp_path / "rows.csv"), label="y")()


def test_faults_of_all_columns_and_settings_are_reported_at_once_at_most_ten_each(tmp_path):
    cells = [f"${n}" for n in range(30)]
    rows = [f"{cell}\t{n} km\t{n}\t{n}" for n, cell in enumerate([*cells, *["?"] * 14])]
    text = "\n".join(["price\tway\tx\ty", *rows, "$1\t3 km\tinf\t"]) + "\n"
    (tmp_path / "rows.csv").write_text(text)
    source = {"path": str(tmp_path / "rows.csv"), "delimiter": "\t"}
    settings = {"exclude": ("no_*",), "sample_weight": "w", "columns": {"c": "money"}, "categorical": ("d",)}
    with pytest.raises(DataError) as error:
        Csv(**source, **settings, label="z", heads={"h": "v"})(SplitConfig(time="day"))
    message = str(error.value)
    assert "14 of 45 values of column 'price' are not money, $: '?' in line 32 of" in message
    assert "'?' in line 41 of" in message
    assert "and 4 more" in message
    assert "column 'way' has numbers in km: '0 km' in line 2 of" in message
    for setting in ("label", "sample_weight", "exclude", "columns", "categorical", "heads.h", "split.time"):
        assert f"{setting} must name" in message
    assert "inf in column 'x', line 46 of" in message
    with pytest.raises(DataError) as error:
        Csv(**source, label="y", exclude=("price", "w*"))()
    message = str(error.value)
    assert "inf in column 'x', line 46 of" in message
    assert "nothing in column 'y', line 46 of" in message


SETTINGS = {
    "money": (["$5", "7"], "money", [5, 7]),
    "percent": (["5 %", "7"], "percent", [5, 7]),
    "a form": (["1,234", "5,678"], "1.234,5", [1.234, 5.678]),
    "a date of digits": (["20141013", "20150225"], "%Y%m%d", ["2014-10-13", "2015-02-25"]),
    "a month": (["Oct 2014", "Feb 2015"], "%b %Y", ["2014-10-01", "2015-02-01"]),
    "time": (["1:00", "2:30"], "time", [1, 2.5]),
    "boolean": (["1", "0"], "boolean", ["true", "false"]),
    "category": (["01", "7"], "category", ["01", "7"]),
}


@pytest.mark.parametrize(("cells", "setting", "values"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_decides_how_a_column_is_read(cells, setting, values, tmp_path):
    np.testing.assert_array_equal(read(tmp_path, cells, columns={"c": setting}).inputs["c"], values)
    if setting != "category":
        with pytest.raises(DataError, match=r"1 of 3 values of column 'c' are not .*'\?' in line 4 of"):
            read(tmp_path, [*cells, "?"], columns={"c": setting})
        frame = pd.DataFrame({"c": cells, "x": [1.0, 2.0], "y": [1.0, 2.0]})
        source = {"function": "data.written.test_written:made", "params": {"frame": frame}, "label": "y"}
        np.testing.assert_array_equal(Function(**source, columns={"c": setting})().inputs["c"], values)


def test_columns_are_left_out_by_name_glob_and_setting(tmp_path):
    (tmp_path / "rows.csv").write_text("id,a_code,b_code,x,y\n1,2,3,4,5\n2,3,4,5,6\n")
    source = {"path": str(tmp_path / "rows.csv"), "label": "y"}
    assert list(Csv(**source, exclude=("*_code",), columns={"id": "ignore"})().inputs) == ["x"]
    with pytest.raises(DataError, match=r"exclude must name columns(.|\n)*'a_cod'(.|\n)*Did you mean 'a_code'"):
        Csv(**source, exclude=("a_cod",))()
    with pytest.raises(DataError, match="must not be an input and excluded"):
        Csv(**source, exclude=("x",), inputs=("x",))()
    with pytest.raises(ConfigError, match=r"a way to read a column(.|\n)*'dollars'(.|\n)*such as %d\.%m\.%Y"):
        Csv(**source, columns={"x": "dollars"})


def test_labels_and_weights_may_be_money_and_words_of_a_label_stay(tmp_path):
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"a;y;w\n1;$1,000;5 %\n2;$2;10 %\n"))
    rows = Csv(path=str(tmp_path / "rows.csv.gz"), label="y", sample_weight="w", delimiter=";")()
    assert (rows.label.tolist(), rows.sample_weight.tolist()) == ([1000, 2], [5, 10])
    (tmp_path / "rows.csv").write_text("a,y\n1,yes\n2,no\n")
    assert Csv(path=str(tmp_path / "rows.csv"), label="y")().label.tolist() == ["yes", "no"]


@pytest.mark.parametrize("form", FORMATS)
def test_dates_are_read_as_by_strptime(form):
    """The oracle is Python's strptime."""
    moments = [
        datetime.datetime(*parts) for parts in [(2014, 10, 13, 0, 5, 9), (1999, 2, 5, 12, 0), (2009, 12, 31, 23)]
    ]
    texts = [moment.strftime(form) for moment in moments]
    reading = date(form)
    assert [datetime.datetime.fromisoformat(reading.plain(t)) for t in texts] == [
        datetime.datetime.strptime(t, form) for t in texts
    ]
    assert convert(pa.array(texts), reading, set()).to_pylist() == [reading.plain(text) for text in texts]
    assert is_format(form)


@pytest.mark.parametrize("sign", ["", "%", *CURRENCIES])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_reading_writes_it_reads_in_arrow_and_python(form, sign):
    reading = number("n", sign, form)
    texts = [reading.text_of(value) for value in (0.5, -12.0, 1234567.25)]
    assert [float(reading.plain(text)) for text in texts] == [0.5, -12, 1234567.25]
    assert convert(pa.array([*texts, None]), reading, {""}).to_pylist() == [0.5, -12, 1234567.25, None]
    assert wrong_rows(pa.array([*texts, "12 km"]), reading, {""}).tolist() == [3]
    assert TextReading.from_record(reading.record({""})) == reading


def test_formats_without_a_year_or_minutes_are_rejected():
    assert not [form for form in ("%d.%m", "%Y-%m-%d %H", "%Q", "%d/%d/%Y", "dates") if is_format(form)]
    assert "[0-9]{4}" in pattern_of("%Y-%m")
    assert steps_of("%Y-%m")[0][1] == r"\1-\2-1"
