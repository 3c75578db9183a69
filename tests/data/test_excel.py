"""Excel files: the types of columns, sheets and headers, and files that are rejected."""

import datetime
import zipfile

import numpy as np
import openpyxl
import pytest

from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.excel import Excel
from ortpipe.errors import ConfigError, DataError

DAY = datetime.datetime(2024, 1, 31)
ROWS = [
    ["count", "share", "price", "day", "moment", "at", "vip", "city", "mixed", "y"],
    [1, 0.5, "$1,200", DAY, DAY.replace(hour=5), datetime.time(13, 45), True, "Ulm", 5, 1.5],
    [2, None, "$900", DAY.replace(day=1), DAY, datetime.time(1, 5, 9), False, None, "7.5", 2.5],
    [],
    ["#N/A", 1, "$7", None, DAY, datetime.time(0), True, "Bonn", None, 3.5],
]


def write(path, rows=ROWS, **sheets):
    book = openpyxl.Workbook()
    for name, content in {"Orders": rows, **sheets}.items():
        sheet = book.create_sheet(name)
        for row in content:
            sheet.append(row)
    del book["Sheet"]
    book.save(path)
    return str(path)


def test_columns_have_the_types_of_their_cells(tmp_path):
    rows = Excel(path=write(tmp_path / "a.xlsx"), label="y")()
    expected = {
        "count": [1, 2, np.nan],
        "share": [0.5, np.nan, 1],
        "price": [1200, 900, 7],
        "day": ["2024-01-31", "2024-01-01", ""],
        "moment": ["2024-01-31T05:00:00", "2024-01-31T00:00:00", "2024-01-31T00:00:00"],
        "vip": ["true", "false", "true"],
        "city": ["Ulm", "", "Bonn"],
        "mixed": [5, 7.5, np.nan],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(
            [str(v).removesuffix(".000000") for v in rows.inputs[name].tolist()]
            if isinstance(values[0], str)
            else rows.inputs[name],
            values,
            name,
        )
    assert rows.label.tolist() == [1.5, 2.5, 3.5]


def test_a_sheet_is_chosen_by_name_and_titles_above_the_table_are_skipped_if_empty(tmp_path):
    path = write(tmp_path / "a.xlsx", More=[[], [None, None], ["x", "y", None], [1, 2]])
    assert Excel(path=path, label="y", sheet="More")().inputs["x"].tolist() == [1]
    with pytest.raises(DataError, match=r"must be a sheet of the file(?s:.*)Did you mean 'More'"):
        Excel(path=path, label="y", sheet="Mor")()


def test_files_may_be_parts_and_faults_name_the_row_of_the_sheet(tmp_path):
    path, test = write(tmp_path / "a.xlsx"), write(tmp_path / "b.xlsx", [ROWS[0], *ROWS[1:2] * 2])
    rows = Excel(path=path, label="y")(SplitConfig(test=test))
    assert rows.part.tolist() == [0, 0, 0, 2, 2]
    rows = [["x", "z", "y"], [1, 1, 1], [], *([n, n, 2] for n in range(9)), ["#DIV/0!", 1, 3], ["1 km", 2, None]]
    with pytest.raises(DataError) as error:
        Excel(path=write(tmp_path / "c.xlsx", rows), label="y", exclude=("w",))()
    message = str(error.value)
    assert "'#DIV/0!' in row 13 of" in message
    assert "'1 km' in row 14 of" in message
    assert "nothing in column 'y', row 14 of" in message
    assert "exclude must name" in message


WRONG = {
    "a title": (
        [["Report 2024"], ["x", "y"], [1, 2]],
        "in the first row that is not empty(?s:.*)'y' in a column without",
    ),
    "a column without a name": ([["x", None, "y"], [1, 5, 2]], "5 in a column without one, row 2 of"),
    "one name twice": ([["x", "x", "y"], [1, 5, 2]], "'x' twice in row 1 of"),
    "nothing": ([], "must have a row of column names"),
    "names alone": ([["x", "y"]], "at least one row"),
}


@pytest.mark.parametrize(("rows", "message"), WRONG.values(), ids=WRONG)
def test_a_sheet_without_a_table_is_rejected(rows, message, tmp_path):
    with pytest.raises(DataError, match=message):
        Excel(path=write(tmp_path / "a.xlsx", rows), label="y")()


def test_bombs_and_other_files_are_rejected(tmp_path, monkeypatch):
    source = Excel(path=str(tmp_path / "a.xlsx"), label="y")
    (tmp_path / "a.xlsx").write_bytes(b"\xd0\xcf\x11\xe0 an old .xls file")
    with pytest.raises(DataError, match="BadZipFile"):
        source()
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.xml", bytes(2**20 + 1))
    monkeypatch.setattr("ortpipe.data.sources.excel.MOST_BYTES", 2**20)
    with pytest.raises(DataError, match="at most 1,048,576 bytes"):
        source()
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(["x", "y"])
    book.save(tmp_path / "a.xlsx")
    with zipfile.ZipFile(tmp_path / "a.xlsx") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = "xl/worksheets/sheet1.xml"
    members[name] = members[name].replace(b"</row>", b'</row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>')
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    monkeypatch.setattr("ortpipe.data.sources.excel.MOST_CELLS", 2**16)
    with pytest.raises(DataError, match="at most 65,536 cells"):
        source()


def test_without_openpyxl_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ortpipe\[excel\]'"):
        Excel(path=write(tmp_path / "a.xlsx"), label="y")()
