"""Tables in CSV files."""

import codecs
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from pyarrow import csv

from ortpipe.data.arrow import matches
from ortpipe.data.config import SplitConfig
from ortpipe.data.csv_text import LONGEST, CsvBatches, CsvFile, load_batches, spill_batches
from ortpipe.data.files import files_with_parts
from ortpipe.data.layout import TableLayout
from ortpipe.data.position import offset_position
from ortpipe.data.rows import PIECE, Rows, RowSet
from ortpipe.data.stream import LIMIT, Stream, Windowed
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import Group, TableReader
from ortpipe.quoting import listing
from ortpipe.settings import Fix, Must

DELIMITERS = {chr(code) for code in range(1, 128)} - {'"', "\r", "\n"}
STRADDLES = "straddles two block boundaries"  # Arrow's message about a row that is longer than a block


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
        size = sum(self._file(file).check() for file in dict.fromkeys(file for file, _ in files))
        streams = self.window is not None and (4 * size > LIMIT if self.stream is None else self.stream)
        tables: dict[Path, CsvBatches] = {}
        for file in dict.fromkeys(file for file, _ in files):
            tables[file] = self._batches(self._file(file), spill_batches if streams else load_batches)
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
            position = offset_position(self._file(file).position, first)
            yield Group(str(file), part, functools.partial(table.read, number), position, follows=number > 0)
            first += rows

    def _file(self, path: Path) -> CsvFile:
        types = dict.fromkeys(self.categorical, pa.string())
        return CsvFile(path, separator(self.delimiter), self.names, self.encoding, self.missing, types)

    def _batches(self, file: CsvFile, read: Callable[[CsvFile, csv.ParseOptions], CsvBatches]) -> CsvBatches:
        """Read a file in blocks, in longer ones if it has a row that is longer; times of day stay as they are written.

        Arrow would read 05:00 as a time, whose text is 05:00:00.
        """
        with file.parsed() as parse:
            try:
                batches = read(file, parse)
            except pa.ArrowInvalid as error:
                if STRADDLES not in str(error):
                    raise
                file = dataclasses.replace(file, block=LONGEST)
                batches = read(file, parse)
            times = {column.name: pa.string() for column in batches.schema if pa.types.is_time(column.type)}
            return read(dataclasses.replace(file, types={**file.types, **times}), parse) if times else batches

    def _leading_zeros(self, file: Path, layout: TableLayout) -> dict[str, str]:
        """Return notes by column about codes such as 01234, which lose their zeros when read as numbers."""
        integers = [name for name in layout.used if name in layout.dtypes and layout.dtypes[name].kind == "i"]
        notes: dict[str, str] = {}
        if not integers:
            return notes
        for piece in self._file(file).words(tuple(integers), PIECE):
            for name in [name for name in integers if name not in notes]:
                zeros = matches(piece.column(name), r"^[-+]?0\d")
                if zeros.any():
                    code = piece.column(name)[int(zeros.argmax())].as_py()
                    notes[name] = (
                        f"column {name!r} is read as numbers: {code} as {int(code)}; if these are codes, list it: "
                        f"{listing('data.source.categorical', name)}"
                    )
        return notes
