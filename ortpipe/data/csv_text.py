"""The text of a CSV file as batches of columns, one for each block of text that Arrow parses at a time."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
from pyarrow import csv

from ortpipe.data.faults import SHOWN as CELLS
from ortpipe.data.groups import Group, Position, by_line, offset_position, open_binary
from ortpipe.data.prefetch import prefetch
from ortpipe.data.spill import SpillFile, fits, folder
from ortpipe.errors import DataError

STRADDLES = "straddles two block boundaries"  # Arrow's message about a row that is longer than a block
CONVERSION_ERROR = re.compile(r"In CSV column #(\d+):.* CSV conversion error to ")
BLOCK, LONGEST = 2**20, 2**24  # bytes of text that are parsed at a time, and of the longest row
MOMENTS = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
KINDS = [
    pa.null(),
    pa.int64(),
    pa.bool_(),
    pa.date32(),
    pa.time32("s"),
    *MOMENTS,
    pa.float64(),
    pa.string(),
    pa.binary(),
]
WIDER = dict(itertools.pairwise(KINDS))  # the type that Arrow tries next if not all values of a column are of one
SHOWN = 12  # bytes shown around one that is no text
MOST_WRONG = 1000  # lines with another number of fields, with which reading ends


@dataclass(frozen=True)
class CsvFile:
    """A CSV file: the only way from its text to columns, for training and prediction.

    Attributes:
        path: the file, also `.gz`.
        delimiter, names, encoding: see `ortpipe.data.sources.csv.Csv`.
        missing: texts that mark a missing value, in addition to Arrow's.
        types: column → its type; others are inferred.
        columns: those to read; none: all.
        block: bytes of text that are parsed at a time.
    """

    path: Path
    delimiter: str = ","
    names: tuple[str, ...] | None = None
    encoding: str = "utf-8"
    missing: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    block: int = field(default_factory=lambda: BLOCK)

    @property
    def position(self) -> Position:
        """The position of rows."""
        return by_line(self.path, self.delimiter, self.encoding, names=self.names is None)

    def check(self) -> int:
        """Return the bytes of the text; reject other bytes, and a quote that opens a field and is never closed."""
        # text without quotes, a quote within a field, a quoted field that another character follows
        closed = re.compile(rf'(?:[^"]++|(?<![{re.escape(self.delimiter)}\r\n])"|"(?:[^"]++|"")*+"(?!\Z))*+')
        decoder, rest, line = codecs.getincrementaldecoder(self.encoding)(), "\n", 1  # rest: from the last character on
        size = 0
        with open_binary(self.path) as binary:
            while len(rest) <= LONGEST:
                block = binary.read(BLOCK)
                size += len(block)
                try:
                    text = decoder.decode(block, final=not block)
                except UnicodeDecodeError as error:
                    lines_before = rest.count("\n", 1) + error.object[: error.start].count(b"\n")
                    raise self._not_text(error.object, error.start, line + lines_before) from error
                text = rest + (text.removeprefix("\ufeff") if line == 1 else text) + ("" if block else "\n")
                match = closed.match(text, 1)
                assert match is not None  # it may be empty
                line, rest = line + text.count("\n", 1, match.end()), text[match.end() - 1 :]
                if not block:
                    break
        if len(rest) > 1:
            raise DataError(
                "A field that begins with a quote must end with one.",
                got=f"line {line} of {self.path}, from which no quote ends the field: {rest[1:60]!r}",
                fix="Add the missing quote; within a quoted field, write two for one.",
            )
        return size

    def _not_text(self, wrong: bytes, start: int, line: int) -> DataError:
        is_utf_16 = wrong.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        first = max(wrong.rfind(b"\n", 0, start) + 1, start - SHOWN)
        [shown, *_] = wrong[first : start + SHOWN].splitlines()
        western = "Set {key}=cp1252 (Excel in western Europe) or latin-1, or convert the file to UTF-8."
        return DataError(
            "A CSV file must be text in the encoding of {key}.",
            key="encoding",
            got=f"{shown!r} is not {self.encoding}, line {line} of {self.path}",
            fix="Set {key}=utf-16." if is_utf_16 else western,
        )

    @contextlib.contextmanager
    def parsed(self) -> Iterator[csv.ParseOptions]:
        """Yield the options for parsing; raise an error of all wrong lines with their positions.

        Without `newlines_in_values` a block would end at any line break, also of a quoted field, whose rest would be a
        row.
        """
        invalid_rows = dict[int, csv.InvalidRow]()  # by number: a file may be read twice

        def skip(row: csv.InvalidRow) -> Literal["error", "skip"]:
            invalid_rows[row.number] = row
            return "skip" if len(invalid_rows) < MOST_WRONG else "error"

        fix = "Check the file and {at}delimiter."
        try:
            yield csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=skip)
        except pa.ArrowInvalid as error:
            if invalid_rows:
                raise self._ragged(list(invalid_rows.values()), fix) from error
            is_empty = "Empty CSV file" in str(error)
            rule = "A CSV file must have " + ("a header line." if is_empty else "one field per column in every line.")
            raise DataError(rule, got=f"{self.path}: {error}", fix=fix) from error
        if invalid_rows:
            raise self._ragged(list(invalid_rows.values()), fix)

    def _ragged(self, rows: list[csv.InvalidRow], fix: str) -> DataError:
        """Return the error for lines with another number of fields than the first."""
        shown = [
            f"{self.position(row.number - 1 - (self.names is None))} has {row.actual_columns}: {row.text[:60]}"
            for row in rows[:CELLS]
        ]
        more = f", and {len(rows) - CELLS:,} {'more' if len(rows) < MOST_WRONG else 'or more'}"
        return DataError(
            f"Every line of a CSV file must have as many fields as the first ({rows[0].expected_columns}).",
            got="; ".join(shown) + more * (len(rows) > CELLS),
            fix=fix,
        )

    def open(self, parse: csv.ParseOptions, *, whole: bool = False) -> pa.RecordBatchReader:
        """Return Arrow's reader; only with one thread does it count the lines of errors.

        Types follow from the first block, or from the `whole` file, which is then in memory.
        """
        read = csv.ReadOptions(
            use_threads=False, block_size=self.block, column_names=self.names, encoding=self.encoding
        )
        convert = csv.ConvertOptions(
            null_values=[*csv.ConvertOptions().null_values, *self.missing],
            column_types=dict(self.types),
            include_columns=list(self.columns),
        )
        options = read, parse, convert
        return csv.read_csv(self.path, *options).to_reader() if whole else csv.open_csv(self.path, *options)

    def header(self) -> list[str]:
        """Return the fields of the first line, or the names."""
        with self.parsed() as parse, dataclasses.replace(self, block=LONGEST).open(parse) as reader:
            return list(reader.schema.names)

    def words(self, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yield columns as text, at most `most` rows at a time."""
        types = dict.fromkeys(columns, pa.string())
        file = dataclasses.replace(self, types=types, columns=tuple(columns), block=LONGEST)
        with file.parsed() as parse, file.open(parse) as reader:
            for batch in reader:
                yield from (batch.slice(first, most) for first in range(0, batch.num_rows, most))

    def table(self, *, on_disk: bool) -> CsvTable:
        """Read the text block by block into memory or a temporary file; again if a later block needs other settings.

        Later blocks may have other types than the first one, or a row that is longer than a block. Times of day stay as
        they are written: Arrow would read 05:00 as a time, whose text is 05:00:00.

        Raises:
            DataError: a line is wrong, or there is no room for the temporary file.
        """
        if on_disk and not fits(size := self.path.stat().st_size):
            raise _no_room(f"{size / 1e6:,.0f} MB of {self.path}, and less than twice as much free space in {folder()}")
        file, names = self, list[str]()
        with self.parsed() as parse:
            while True:
                try:
                    with file.open(parse, whole=not on_disk) as blocks:
                        names = blocks.schema.names
                        types = {**dict(zip(names, blocks.schema.types, strict=True)), **file.types}
                        file = dataclasses.replace(file, types=types)
                        table = self._keep(blocks, SpillFile() if on_disk else None)
                except OSError as error:
                    raise _no_room(f"{error}, in {folder()}") if on_disk else error from error
                except pa.ArrowInvalid as error:
                    column = CONVERSION_ERROR.match(str(error))
                    name = names[int(column[1])] if column is not None and names else ""
                    if STRADDLES in str(error) and file.block < LONGEST:
                        file = dataclasses.replace(file, block=LONGEST)
                    elif name in file.types.keys() - self.types and (wider := WIDER.get(file.types[name])) is not None:
                        file = dataclasses.replace(file, types={**file.types, name: wider})
                    else:
                        raise
                else:
                    times = {name: pa.string() for name, kind in file.types.items() if pa.types.is_time(kind)}
                    if not times:
                        return table
                    file = dataclasses.replace(file, types={**file.types, **times})

    def _keep(self, blocks: pa.RecordBatchReader, spill: SpillFile | None) -> CsvTable:
        """Return the blocks as a table, in memory or in a file."""
        groups, first, size = list[Group](), 0, 0
        for batch in prefetch(filter(len, blocks)):
            get = functools.partial(spill.get, spill.put(batch)) if spill else lambda batch=batch: batch
            read, position = functools.partial(_read, get), offset_position(self.position, first)
            groups.append(Group(str(self.path), None, read, position, follows=first > 0))
            first, size = first + len(batch), size + batch.nbytes
        empty = Group(str(self.path), None, lambda columns, most: iter(()), self.position)
        return CsvTable(blocks.schema, groups or [empty], size)


class CsvTable(NamedTuple):
    """The columns of a file, with a group for each block that is not empty, but at least one."""

    schema: pa.Schema
    groups: list[Group]
    size: int  # bytes

    @property
    def note(self) -> str:
        """The note about the temporary file."""
        size = max(1, round(self.size / 1e6))
        where = f"an unnamed temporary file in {folder()} (TMPDIR), which is freed when the process ends"
        return f"the columns of {self.groups[0].file}, {size:,} MB, are in {where}"


def _read(get: Callable[[], pa.RecordBatch], columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
    batch = get().select(columns)
    yield from (batch.slice(first, most) for first in range(0, len(batch), most))


def _no_room(actual: str) -> DataError:
    return DataError(
        "Streaming a CSV file needs room for its columns in a temporary file.",
        got=actual,
        fix="Set TMPDIR to a folder with more room, {at}stream=false to hold rows in memory, or convert to Parquet.",
    )
