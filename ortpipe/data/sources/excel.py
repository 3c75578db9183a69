"""Tables in Excel files."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from ortpipe.bounded import MOST_BYTES
from ortpipe.data.files import files_with_parts
from ortpipe.data.groups import Group, group_of
from ortpipe.data.packages import require
from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.stream import Stream
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import TableReader
from ortpipe.errors import DataError, OrtpipeError, nearest

MOST_CELLS = 2**26  # of a sheet, empty ones included
MISSING = (None, "", "#N/A")
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Excel(TableSource):
    """A sheet of an Excel file, or of each file in a folder; its first row that is not empty names the columns.

    A column of numbers, dates or truth values is read as such, and any other one as text. Rows are held in memory.

    Attributes:
        path: the file, or a folder whose `.xlsx` files are read, sorted by name.
        sheet: the name of the sheet; null: the first one.
    """

    endings: ClassVar[tuple[str, ...]] = (".xlsx",)

    path: str
    sheet: str | None = None

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Return all rows."""
        tables = [(file, part, *self._read(file)) for file, part in files_with_parts(self.path, split, self.endings)]
        groups = [Group(str(file), part, group.read, group.position) for file, part, _, group in tables]
        reader = TableReader(self, {str(file): schema for file, _, schema, _ in tables}, groups, split)
        return Stream(reader, window=None).rows()

    def new_rows(self, columns: Sequence[str]) -> tuple[pa.Schema, Group]:
        """Return the schema and the rows of the file."""
        return self._read(Path(self.path))

    def _read(self, file: Path) -> tuple[pa.Schema, Group]:
        """Return a sheet's schema and rows; raise if the file is too large or not of Excel."""
        require("openpyxl", "an Excel file", "excel")
        import openpyxl

        try:
            with zipfile.ZipFile(file) as archive:  # which stops each member at the size that it states
                size = sum(member.file_size for member in archive.infolist())
            if size > MOST_BYTES:
                rule = f"An Excel file must have at most {MOST_BYTES:,} bytes of content."
                raise DataError(rule, key="path", got=f"{size:,} in {file}", fix="Save it as CSV.")
            book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
            try:
                return self._table(book, file)
            finally:
                book.close()
        except OrtpipeError:
            raise
        except Exception as error:  # openpyxl has none of its own for wrong content
            rule, fix = "An Excel file must be a readable .xlsx file.", "Save it again as .xlsx, or as CSV."
            raise DataError(rule, key="path", got=f"{file}: {type(error).__name__}: {error}", fix=fix) from error

    def _table(self, book: Any, file: Path) -> tuple[pa.Schema, Group]:
        names = [sheet.title for sheet in book.worksheets]
        if not names or (self.sheet is not None and self.sheet not in names):
            rule, fix = "{key} must be a sheet of the file.", nearest(str(self.sheet), names)
            raise DataError(rule, key="sheet", got=f"{self.sheet!r} for {file}", fix=fix)
        sheet = book.worksheets[0 if self.sheet is None else names.index(self.sheet)]
        sheet.reset_dimensions()  # the file's own are a claim
        where = f"{file}, sheet {sheet.title!r}"
        header, start = _header(sheet, where)
        numbers, rows = list[int](), list[tuple[Any, ...]]()
        for number, row in enumerate(sheet.iter_rows(start, max_col=len(header) + 1, values_only=True), start):
            if number * len(header) > MOST_CELLS:
                rule = f"A sheet must have at most {MOST_CELLS:,} cells."
                raise DataError(rule, key="path", got=f"more in {where}", fix="Remove empty rows, or save it as CSV.")
            if any(value not in MISSING for value in row):
                _check_named(row, header, f"row {number} of {where}")
                numbers.append(number)
                rows.append((*row, *[None] * (len(header) - len(row))))
        columns = {name: _column([row[place] for row in rows]) for place, name in enumerate(header) if name}
        table = pa.Table.from_arrays([*columns.values()], names=[*columns])
        return table.schema, group_of(table, where, position=lambda row: f"row {numbers[row]} of {where}")


def _header(sheet: Any, where: str) -> tuple[list[str], int]:
    """Return the names of the columns, "" for a column without one, and the number of the first row below them."""
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        names = ["" if value in MISSING else str(value).strip() for value in row]
        while names and not names[-1]:
            names.pop()
        if names:
            if twice := {name for name in names if name and names.count(name) > 1}:
                rule, fix = "Column names must be unique.", "Rename one."
                raise DataError(rule, got=f"{min(twice)!r} twice in row {number} of {where}", fix=fix)
            return names, number + 1
    raise DataError(
        "A sheet must have a row of column names.", key="sheet", got=f"an empty {where}", fix="Choose {key}."
    )


def _check_named(row: Sequence[Any], header: Sequence[str], where: str) -> None:
    """Reject a value in a column without a name, the column behind the last one included."""
    for value, name in zip(row, (*header, ""), strict=False):
        if not name and value not in MISSING:
            raise DataError(
                "Every column of a sheet must have a name in the first row that is not empty.",
                got=f"{value!r} in a column without one, {where}",
                fix="Name the column, or remove titles and notes around the table.",
            )


def _column(values: list[Any]) -> pa.Array:
    """Return the cells of a column as numbers, truth values or dates if all are; else as text."""
    values = [
        None if value in MISSING else value / DAY if isinstance(value, datetime.timedelta) else value
        for value in values
    ]
    kinds = {type(value) for value in values} - {type(None)}
    if kinds & {int, float} and kinds <= {int, float, str}:
        try:
            values = [float(value) if isinstance(value, str) else value for value in values]  # numbers stored as text
        except ValueError:
            return pa.array([None if value is None else _text(value) for value in values], pa.string())
        if all(value is None or (float(value).is_integer() and abs(value) < 2**53) for value in values):
            return pa.array([None if value is None else int(value) for value in values], pa.int64())
        return pa.array(values, pa.float64())
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds and kinds <= {datetime.datetime, datetime.date}:
        is_day = all(value is None or _text(value).find(" ") < 0 for value in values)
        return pa.array(values, pa.date32() if is_day else pa.timestamp("us"))
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    """Return a cell as text, as it would be in a CSV file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    if isinstance(value, datetime.time):
        return value.isoformat().removesuffix(":00") if value.second == 0 else value.isoformat()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
