"""Tables in CSV files."""

import codecs
import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pyarrow as pa

from ortpipe.data.arrow import matches
from ortpipe.data.csv_text import LONGEST, CsvFile
from ortpipe.data.files import files_with_parts
from ortpipe.data.groups import Group, open_binary
from ortpipe.data.layout import TableLayout
from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import PIECE
from ortpipe.data.stream import LIMIT, Stream, Windowed
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import TableReader
from ortpipe.errors import DataError
from ortpipe.quoting import listing
from ortpipe.settings import Fix, Must

MARKS = (",", ";", "\t", "|")  # recognized delimiters, by preference
DELIMITERS = {chr(code) for code in range(1, 128)} - {'"', "\r", "\n"}


def is_encoding(name: str) -> bool:
    """Return whether Python knows an encoding of this name."""
    try:
        return bool(codecs.lookup(name))
    except (LookupError, ValueError):
        return False


def separator(text: str) -> str:
    """Return the delimiter in the file: a tab for the two characters of its escape, else the setting itself."""
    return "\t" if text == "\\t" else text


Delimiter = Annotated[
    str,
    Must("one ASCII character, and no quote or line break", lambda text: separator(text) in DELIMITERS),
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
        path: the file (also `.gz`), or a folder whose `.csv` and `.tsv` files are read, sorted by name.
        delimiter: between the fields of a line; `"\\t"` is a tab; null: the comma, semicolon, tab or bar that
            gives the first line the most fields.
        names: the column names of a file whose first line is a row; null: the first line names them.
        encoding: of its text, by Python's name, such as `latin-1` or `cp1252`.
    """

    endings: ClassVar[tuple[str, ...]] = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

    path: str
    delimiter: Delimiter | None = None
    names: tuple[str, ...] | None = None
    encoding: Encoding = "utf-8"

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Return all rows."""
        paths = files_with_parts(self.path, split, self.endings)
        files = {path: self._file(path) for path, _ in paths}
        size = sum(file.check() for file in files.values())
        on_disk = self.window is not None and (4 * size > LIMIT if self.stream is None else self.stream)
        tables = {path: file.table(on_disk=on_disk) for path, file in files.items()}
        groups = [dataclasses.replace(group, part=part) for path, part in paths for group in tables[path].groups]
        schemas = {str(path): table.schema for path, table in tables.items()}
        reader = TableReader(self, schemas, groups, split)
        zeros = {name: note for file in files.values() for name, note in _leading_zeros(file, reader.layout).items()}
        marks = {file.delimiter for file in files.values()} - {",", self.delimiter and separator(self.delimiter)}
        reader.notes = (
            *reader.notes,
            *zeros.values(),
            *(f"fields are separated by {mark!r}" for mark in sorted(marks)),
        )
        rows = self.rows_of(reader)
        if on_disk and isinstance(rows, Stream):
            rows.notes = (*reader.notes, *(table.note for table in tables.values()))
        return rows

    def new_rows(self, columns: Sequence[str]) -> tuple[pa.Schema, Group]:
        """Return the schema and the rows of a file, all text; without a header line its columns are those in `names`.

        The file has a header line if its first line names the columns; without one, it may lack the labels.
        """
        file = self._file(Path(self.path))
        file.check()
        if self.names:
            first_line = dataclasses.replace(file, names=None).header()
            names = None if {*columns} <= {*first_line} else self._names_of(len(first_line))
            file = dataclasses.replace(file, names=names)
        schema = pa.schema([(name, pa.string()) for name in file.header()])
        return schema, Group(self.path, None, file.words, file.position)

    def _names_of(self, count: int) -> tuple[str, ...]:
        """Return the names of `count` columns: all, or those without labels."""
        every = self.names or ()
        inputs = tuple(name for name in every if name not in self.labels)
        if count not in (len(every), len(inputs)):
            rule = "A file without a header line must have the columns of the run's {at}names, label or not."
            fix = f"They are {', '.join(every[:24])}; or add a header line to the file."
            raise DataError(rule, got=f"{count} fields in the first line of {self.path}", fix=fix)
        return every if count == len(every) else inputs

    def _recognized(self, path: Path) -> str:
        """Return the delimiter with the most fields in the first line."""
        try:
            with open_binary(path) as binary, io.TextIOWrapper(binary, self.encoding, "replace") as lines:
                text = lines.readline(LONGEST)
        except UnicodeError:  # `check` reports it
            return MARKS[0]
        return max(MARKS, key=lambda mark: len(next(csv.reader([text], delimiter=mark), ())))

    def _file(self, path: Path) -> CsvFile:
        types = dict.fromkeys((*self.categorical, *self.readings), pa.string())
        mark = self._recognized(path) if self.delimiter is None else separator(self.delimiter)
        return CsvFile(path, mark, self.names, self.encoding, self.missing, types)


def _leading_zeros(file: CsvFile, layout: TableLayout) -> dict[str, str]:
    """Return notes by column about codes such as 01234, which lose their zeros when read as numbers."""
    integers = [name for name in layout.used if name in layout.dtypes and layout.dtypes[name].kind == "i"]
    notes: dict[str, str] = {}
    for piece in file.words(integers, PIECE) if integers else ():
        for name in [name for name in integers if name not in notes]:
            zeros = matches(piece.column(name), r"^[-+]?0\d")
            if zeros.any():
                code = piece.column(name)[int(zeros.argmax())].as_py()
                notes[name] = (
                    f"column {name!r} is read as numbers: {code} as {int(code)}; if these are codes, list it: "
                    f"{listing('data.source.categorical', name)}"
                )
    return notes
