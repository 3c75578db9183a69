"""Tables in CSV files."""

import codecs
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
from pyarrow import csv

from ortpipe.data.arrow import matches
from ortpipe.data.config import SplitConfig
from ortpipe.data.csv_text import CsvBatches, CsvText, load_batches, spill_batches
from ortpipe.data.files import files_with_parts
from ortpipe.data.layout import TableLayout
from ortpipe.data.position import Position, by_line, offset_position
from ortpipe.data.rows import Rows, RowSet
from ortpipe.data.stream import LIMIT, Stream, Windowed
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import Group, TableReader
from ortpipe.errors import DataError, listing
from ortpipe.settings import Fix, Must

BLOCK = 2**20  # bytes of text that are parsed at a time
SHOWN = 12  # bytes of what is no text
PACKED = 8  # times the bytes of a .gz file that its text may have


def is_encoding(name: str) -> bool:
    """Return whether Python knows an encoding by that name."""
    try:
        return bool(codecs.lookup(name))
    except LookupError:
        return False


class InvalidRows:
    """Remembers the first line that has not one field per column."""

    def __init__(self) -> None:
        self._first: csv.InvalidRow | None = None

    def __call__(self, row: csv.InvalidRow) -> Literal["error"]:
        """Take a line, and let Arrow end there."""
        self._first = self._first or row
        return "error"

    def refuse(self, position: Position, *, names: bool, fix: str) -> None:
        """Refuse the file where there is such a line; its first line holds the names of columns or none."""
        if (row := self._first) is not None:
            raise DataError(
                f"Every line of a CSV file has as many fields as the first ({row.expected_columns}).",
                got=f"{position(row.number - 1 - names)} has {row.actual_columns}: {row.text[:60]}",
                fix=fix,
            )


def separator(text: str) -> str:
    """Return a delimiter as it stands in a file: a tab for its two characters, as a command line gives it."""
    return "\t" if text == "\\t" else text


Delimiter = Annotated[
    str,
    Must("one character", lambda text: len(separator(text)) == 1),
    Fix("Set {key}=';', or \"\\t\" for a tab."),
]
Encoding = Annotated[
    str, Must("an encoding that Python knows", is_encoding), Fix("Set {key}=utf-8, latin-1 or cp1252.")
]


@dataclass(frozen=True, kw_only=True)
class Csv(TableSource, Windowed):
    """A CSV file, or a folder of them; types are read off the values.

    One that does not fit in memory streams: its columns are laid down in a file without a name, as Arrow holds them,
    and read from there, so that text is parsed once.

    Attributes:
        path: the file (also `.gz`), or a folder whose `.csv` files are read, sorted by name.
        delimiter: between the fields of a line; `"\\t"` is a tab.
        names: the columns of a file whose first line is a row already; null: the first line names them.
        encoding: of its text, by Python's name, such as `latin-1` or `cp1252`.
    """

    path: str
    delimiter: Delimiter = ","
    names: tuple[str, ...] | None = None
    encoding: Encoding = "utf-8"

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read every row."""
        files = files_with_parts(self.path, split, (".csv", ".csv.gz"))
        size = sum(file.stat().st_size * (PACKED if file.suffix == ".gz" else 1) for file, _ in files)
        streams = self.window is not None and (4 * size > LIMIT if self.stream is None else self.stream)
        tables: dict[Path, CsvBatches] = {}
        for file in dict.fromkeys(file for file, _ in files):
            with self._explain_errors(file) as parse:
                tables[file] = (spill_batches if streams else load_batches)(self._text_of(file, parse))
        groups = [group for file, part in files for group in self._groups(file, tables[file], part)]
        schemas = {str(file): table.schema for file, table in tables.items()}
        reader = TableReader(self, schemas, groups, split.column if split else None)
        zeros = {name: note for file in tables for name, note in self._leading_zeros(file, reader.layout).items()}
        laid = [table.note(str(file)) for file, table in tables.items() if table.size]
        rows = self.rows_of(reader)
        notes = (*reader.notes, *zeros.values(), *(laid if isinstance(rows, Stream) else []))
        if isinstance(rows, Rows):
            return rows.replace(notes=notes)
        rows.notes = notes
        return rows

    def _groups(self, file: Path, table: CsvBatches, part: int | None) -> Iterator[Group]:
        """Yield a group for each block of a file, at least one."""
        first = 0
        for number, rows in enumerate(table.lengths or [0]):
            position = offset_position(self._position(file), first)
            yield Group(str(file), part, functools.partial(table.read, number), position, follows=number > 0)
            first += rows

    def _text_of(self, file: Path, parse: csv.ParseOptions) -> CsvText:
        convert = csv.ConvertOptions(
            null_values=[*csv.ConvertOptions().null_values, *self.missing],
            column_types=dict.fromkeys(self.categorical, "string"),
        )
        return CsvText(file, self._options, parse, convert, functools.partial(self._check_text, self._position(file)))

    @contextlib.contextmanager
    def _explain_errors(self, file: Path) -> Iterator[csv.ParseOptions]:
        """Hand out how lines are parsed; say of what is no such text, or no such lines, where it is."""
        wrong, position = InvalidRows(), self._position(file)
        try:
            self._check_mark(file)
            yield csv.ParseOptions(delimiter=separator(self.delimiter), invalid_row_handler=wrong)
        except UnicodeDecodeError as error:
            is_utf_16 = error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            bad = error.object[max(0, error.start - SHOWN) : error.start + SHOWN]
            raise DataError(
                "A CSV file is text in the encoding that {key} names.",
                key="encoding",
                got=f"{bad!r} is not {self.encoding}, {' '.join(getattr(error, '__notes__', [f'in {file}']))}",
                fix="Set {key}=utf-16."
                if is_utf_16
                else "Set {key}=cp1252 (Excel in western Europe) or latin-1, or write it as UTF-8.",
            ) from error
        except pa.ArrowInvalid as error:
            fix = "Check the file and {at}delimiter."
            wrong.refuse(position, names=self.names is None, fix=fix)
            rule = "A CSV file holds lines with one field per column."
            raise DataError(rule, got=f"{file}: {error}", fix=fix) from error

    def _position(self, file: Path) -> Position:
        return by_line(file, separator(self.delimiter), self.encoding, names=self.names is None)

    @property
    def _options(self) -> csv.ReadOptions:
        # one thread counts its lines
        return csv.ReadOptions(use_threads=False, block_size=BLOCK, column_names=self.names, encoding=self.encoding)

    def _check_mark(self, file: Path) -> None:
        """Refuse the mark at the beginning of UTF-16: read as UTF-8, its text would be torn apart by zero bytes."""
        with file.open("rb") as opened:
            mark = opened.read(2)
        if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and codecs.lookup(self.encoding).name == "utf-8":
            mark.decode()

    def _check_text(self, position: Position, table: pa.Table | pa.RecordBatch, first: int = 0) -> None:
        """Decode names and values, and note the place of what is no text: of such bytes Arrow makes another type."""
        row: int | None = None
        try:
            for number in range(table.num_columns):
                name, column, row = table.schema.field(number).name, table.column(number), None
                for row, value in enumerate(column.to_pylist() if str(column.type) == "binary" else []):  # noqa: B007
                    (value or b"").decode()
        except UnicodeDecodeError as error:
            error.add_note(
                f"the name of column {number} in {position(-1)}"
                if row is None
                else f"column {name!r}, {position(first + row)}"
            )
            raise

    def _leading_zeros(self, file: Path, layout: TableLayout) -> dict[str, str]:
        """Return what is lost of codes such as 01234, by column: read as numbers, they lose their zeros."""
        whole = [name for name in layout.used if name in layout.dtypes and layout.dtypes[name].kind == "i"]
        notes: dict[str, str] = {}
        if not whole:
            return notes
        convert = csv.ConvertOptions(column_types=dict.fromkeys(whole, "string"), include_columns=whole)
        for piece in csv.open_csv(file, self._options, csv.ParseOptions(delimiter=separator(self.delimiter)), convert):
            for name in [name for name in whole if name not in notes]:
                zeros = matches(piece.column(name), r"^[-+]?0\d")
                if zeros.any():
                    code = piece.column(name)[int(zeros.argmax())].as_py()
                    notes[name] = (
                        f"column {name!r} is read as numbers: {code} as {int(code)}; codes are words: "
                        f"{listing('data.source.categorical', name)}"
                    )
        return notes
