"""Tables in CSV files."""

import codecs
import contextlib
import functools
from collections.abc import Callable, Iterator
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

BLOCK, LONGEST = 2**20, 2**24  # bytes of text that are parsed at a time, and of the longest row
STRADDLES = "straddles two block boundaries"  # what Arrow says of a row that is longer than a block
SHOWN = 12  # bytes shown around one that is no text
PACKED = 8  # assumed ratio of a text's size to that of its .gz file


def is_encoding(name: str) -> bool:
    """Return whether Python knows an encoding of this name."""
    try:
        return bool(codecs.lookup(name))
    except LookupError:
        return False


class InvalidRows:
    """Remembers the first line whose number of fields differs from the number of columns."""

    def __init__(self) -> None:
        self._first: csv.InvalidRow | None = None

    def __call__(self, row: csv.InvalidRow) -> Literal["error"]:
        """Remember a line, and let Arrow stop there."""
        self._first = self._first or row
        return "error"

    def check(self, position: Position, *, names: bool, fix: str) -> None:
        """Raise if there is such a line; `names`: the file's first line holds the column names."""
        if (row := self._first) is not None:
            raise DataError(
                f"Every line of a CSV file must have as many fields as the first ({row.expected_columns}).",
                got=f"{position(row.number - 1 - names)} has {row.actual_columns}: {row.text[:60]}",
                fix=fix,
            )


def separator(text: str) -> str:
    """Return the delimiter in the file: a tab for the two characters of its escape, else the setting itself."""
    return "\t" if text == "\\t" else text


def parse_options(delimiter: str, invalid_rows: InvalidRows | None = None) -> csv.ParseOptions:
    """Return Arrow's options for lines of this delimiter.

    Without `newlines_in_values` a block would end at any line break, also of a quoted field, whose rest would be a row.
    """
    lines = separator(delimiter)
    return csv.ParseOptions(delimiter=lines, newlines_in_values=True, invalid_row_handler=invalid_rows)


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
    """A CSV file, or a folder of them; types are inferred from the values.

    A large one is streamed: its columns are written to a temporary file in Arrow's format and read from there, so that
    the text is parsed once.

    Attributes:
        path: the file (also `.gz`), or a folder whose `.csv` files are read, sorted by name.
        delimiter: between the fields of a line; `"\\t"` is a tab.
        names: the column names of a file whose first line is a row; null: the first line names them.
        encoding: of its text, by Python's name, such as `latin-1` or `cp1252`.
    """

    path: str
    delimiter: Delimiter = ","
    names: tuple[str, ...] | None = None
    encoding: Encoding = "utf-8"

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Return all rows."""
        files = files_with_parts(self.path, split, (".csv", ".csv.gz"))
        size = sum(file.stat().st_size * (PACKED if file.suffix == ".gz" else 1) for file, _ in files)
        streams = self.window is not None and (4 * size > LIMIT if self.stream is None else self.stream)
        tables: dict[Path, CsvBatches] = {}
        for file in dict.fromkeys(file for file, _ in files):
            with self._explain_errors(file) as parse:
                tables[file] = self._batches(file, parse, spill_batches if streams else load_batches)
        groups = [group for file, part in files for group in self._groups(file, tables[file], part)]
        schemas = {str(file): table.schema for file, table in tables.items()}
        reader = TableReader(self, schemas, groups, split.column if split else None)
        zeros = {name: note for file in tables for name, note in self._leading_zeros(file, reader.layout).items()}
        spill_notes = [table.note(str(file)) for file, table in tables.items() if table.size]
        rows = self.rows_of(reader)
        notes = (*reader.notes, *zeros.values(), *(spill_notes if isinstance(rows, Stream) else []))
        if isinstance(rows, Rows):
            return rows.replace(notes=notes)
        rows.notes = notes
        return rows

    def _groups(self, file: Path, table: CsvBatches, part: int | None) -> Iterator[Group]:
        """Yield a group for each block of a file, but at least one."""
        first = 0
        for number, rows in enumerate(table.lengths or [0]):
            position = offset_position(self._position(file), first)
            yield Group(str(file), part, functools.partial(table.read, number), position, follows=number > 0)
            first += rows

    def _batches(self, file: Path, parse: csv.ParseOptions, read: Callable[[CsvText], CsvBatches]) -> CsvBatches:
        """Read a file in blocks, in longer ones if it has a row that is longer."""
        try:
            return read(self._text_of(file, parse, BLOCK))
        except pa.ArrowInvalid as error:
            if STRADDLES not in str(error):
                raise
        return read(self._text_of(file, parse, LONGEST))

    def _text_of(self, file: Path, parse: csv.ParseOptions, block: int) -> CsvText:
        convert = csv.ConvertOptions(
            null_values=[*csv.ConvertOptions().null_values, *self.missing],
            column_types=dict.fromkeys(self.categorical, "string"),
        )
        check = functools.partial(self._check_text, self._position(file))
        return CsvText(file, self._options(block), parse, convert, check)

    @contextlib.contextmanager
    def _explain_errors(self, file: Path) -> Iterator[csv.ParseOptions]:
        """Yield the options for parsing; raise errors of encoding and of lines with their position."""
        invalid_rows, position = InvalidRows(), self._position(file)
        try:
            self._check_mark(file)
            yield parse_options(self.delimiter, invalid_rows)
        except UnicodeDecodeError as error:
            is_utf_16 = error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            bad = error.object[max(0, error.start - SHOWN) : error.start + SHOWN]
            raise DataError(
                "A CSV file must be text in the encoding of {key}.",
                key="encoding",
                got=f"{bad!r} is not {self.encoding}, {' '.join(getattr(error, '__notes__', [f'in {file}']))}",
                fix="Set {key}=utf-16."
                if is_utf_16
                else "Set {key}=cp1252 (Excel in western Europe) or latin-1, or convert the file to UTF-8.",
            ) from error
        except pa.ArrowInvalid as error:
            fix = "Check the file and {at}delimiter."
            invalid_rows.check(position, names=self.names is None, fix=fix)
            rule = "Every line of a CSV file must have one field per column."
            raise DataError(rule, got=f"{file}: {error}", fix=fix) from error

    def _position(self, file: Path) -> Position:
        return by_line(file, separator(self.delimiter), self.encoding, names=self.names is None)

    def _options(self, block: int) -> csv.ReadOptions:
        # only one thread counts the lines of errors
        return csv.ReadOptions(use_threads=False, block_size=block, column_names=self.names, encoding=self.encoding)

    def _check_mark(self, file: Path) -> None:
        """Reject the byte order mark of UTF-16: read as UTF-8, the text would be full of zero bytes."""
        with file.open("rb") as stream:
            mark = stream.read(2)
        if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and codecs.lookup(self.encoding).name == "utf-8":
            mark.decode()

    def _check_text(self, position: Position, table: pa.Table | pa.RecordBatch, first: int = 0) -> None:
        """Decode names and values, and note the place of bytes that are no text, which Arrow reads as binary."""
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
        """Return notes by column about codes such as 01234, which lose their zeros when read as numbers."""
        integers = [name for name in layout.used if name in layout.dtypes and layout.dtypes[name].kind == "i"]
        notes: dict[str, str] = {}
        if not integers:
            return notes
        convert = csv.ConvertOptions(column_types=dict.fromkeys(integers, "string"), include_columns=integers)
        for piece in csv.open_csv(file, self._options(LONGEST), parse_options(self.delimiter), convert):
            for name in [name for name in integers if name not in notes]:
                zeros = matches(piece.column(name), r"^[-+]?0\d")
                if zeros.any():
                    code = piece.column(name)[int(zeros.argmax())].as_py()
                    notes[name] = (
                        f"column {name!r} is read as numbers: {code} as {int(code)}; if these are codes, list it: "
                        f"{listing('data.source.categorical', name)}"
                    )
        return notes
