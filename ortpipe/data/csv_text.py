"""The text of a CSV file as batches of columns, in memory or in a temporary file.

Both give the same types and the same batches: one for each block of text that Arrow parses at a time.
"""

import codecs
import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyarrow import csv

from ortpipe.data.position import Position, by_line, open_binary
from ortpipe.data.prefetch import prefetch
from ortpipe.data.spill import Place, SpillFile, fits, folder
from ortpipe.errors import DataError

CONVERSION_ERROR = re.compile(r"In CSV column #(\d+):.* CSV conversion error to ")
BLOCK, LONGEST = 2**20, 2**24  # bytes of text that are parsed at a time, and of the longest row
SHOWN = 12  # bytes shown around one that is no text


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
        """Yield the options for parsing; raise an error of a line with its position.

        Without `newlines_in_values` a block would end at any line break, also of a quoted field, whose rest would be a
        row.
        """
        invalid_rows = list[csv.InvalidRow]()

        def stop(row: csv.InvalidRow) -> Literal["error"]:
            invalid_rows.append(row)
            return "error"

        fix = "Check the file and {at}delimiter."
        try:
            yield csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=stop)
        except pa.ArrowInvalid as error:
            for row in invalid_rows[:1]:
                raise DataError(
                    f"Every line of a CSV file must have as many fields as the first ({row.expected_columns}).",
                    got=f"{self.position(row.number - 1 - (self.names is None))} has {row.actual_columns}: "
                    f"{row.text[:60]}",
                    fix=fix,
                ) from error
            rule = "Every line of a CSV file must have one field per column."
            raise DataError(rule, got=f"{self.path}: {error}", fix=fix) from error

    @property
    def read_options(self) -> csv.ReadOptions:
        """Arrow's options; only one thread counts the lines of errors."""
        return csv.ReadOptions(
            use_threads=False, block_size=self.block, column_names=self.names, encoding=self.encoding
        )

    @property
    def convert_options(self) -> csv.ConvertOptions:
        """Arrow's options."""
        return csv.ConvertOptions(
            null_values=[*csv.ConvertOptions().null_values, *self.missing],
            column_types=dict(self.types),
            include_columns=list(self.columns),
        )

    def open(self, parse: csv.ParseOptions) -> csv.CSVStreamingReader:
        """Return Arrow's reader of the file."""
        return csv.open_csv(self.path, self.read_options, parse, self.convert_options)

    def header(self) -> list[str]:
        """Return the fields of the first line, or the names."""
        with self.parsed() as parse, dataclasses.replace(self, block=LONGEST).open(parse) as reader:
            return list(reader.schema.names)

    def words(self, columns: tuple[str, ...], most: int) -> Iterator[pa.RecordBatch]:
        """Yield columns as text, at most `most` rows at a time."""
        types = dict.fromkeys(columns, pa.string())
        file = dataclasses.replace(self, types=types, columns=columns, block=LONGEST)
        with file.parsed() as parse, file.open(parse) as reader:
            for batch in reader:
                yield from (batch.slice(first, most) for first in range(0, batch.num_rows, most))


@dataclass
class CsvBatches:
    """The non-empty batches of a file.

    Attributes:
        schema: the schema of every batch.
        get: returns a batch by its number.
        lengths: the number of rows of each batch.
        size: the bytes of the batches in a temporary file.
    """

    schema: pa.Schema
    get: Callable[[int], pa.RecordBatch]
    lengths: list[int] = field(default_factory=list)
    size: int = 0

    def read(self, number: int, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a batch, at most `most` rows at a time."""
        if self.lengths:
            batch = self.get(number).select(columns)
            yield from (batch.slice(first, most) for first in range(0, len(batch), most))

    def note(self, file: str) -> str:
        """Return the note about the temporary file."""
        size = max(1, round(self.size / 1e6))
        where = f"an unnamed temporary file in {folder()} (TMPDIR), which is freed when the process ends"
        return f"the columns of {file}, {size:,} MB, are in {where}"


def load_batches(file: CsvFile, parse: csv.ParseOptions) -> CsvBatches:
    """Read a whole file and return its batches."""
    table = csv.read_csv(file.path, file.read_options, parse, file.convert_options)
    batches = [batch for batch in table.to_batches() if len(batch)]
    return CsvBatches(table.schema, batches.__getitem__, list(map(len, batches)))


def spill_batches(file: CsvFile, parse: csv.ParseOptions) -> CsvBatches:
    """Read a file block by block into a temporary file, and again if a later block has other types.

    Raises:
        DataError: there is no room for the temporary file.
    """
    types, names = file.types, list[str]()
    while True:
        try:
            with dataclasses.replace(file, types=types).open(parse) as blocks:
                names = blocks.schema.names
                types = {**dict(zip(names, blocks.schema.types, strict=True)), **types}
                return _spill_blocks(file.path, blocks)
        except pa.ArrowInvalid as error:
            match = CONVERSION_ERROR.match(str(error))
            name = names[int(match[1])] if match is not None and names else None
            wider_type = None if name is None or name in file.types else _wider_type(types[name])
            if name is None or wider_type is None:
                raise
            types = {**types, name: wider_type}


def _wider_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that Arrow tries next if not all values of a column are of this one."""
    moments = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
    kinds = [pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), *moments, pa.float64()]
    kinds += [pa.string(), pa.binary()]
    return kinds[kinds.index(kind) + 1] if kind in kinds[:-1] else None


def _spill_blocks(path: Path, blocks: csv.CSVStreamingReader) -> CsvBatches:
    """Write blocks to a temporary file and return its batches."""
    if not fits(size := path.stat().st_size):
        raise _no_room(f"{size / 1e6:,.0f} MB of {path}, and less than twice as much free space in {folder()}")
    try:
        file = SpillFile()
    except OSError as error:
        raise _no_room(f"{error}, in {folder()}") from error
    places = list[Place]()
    batches = CsvBatches(blocks.schema, lambda number: file.get(places[number]))
    for batch in prefetch(blocks):
        if len(batch):
            try:
                places.append(file.put(batch))
            except OSError as error:
                raise _no_room(f"{error}, in {folder()}") from error
            batches.lengths.append(len(batch))
            batches.size += batch.nbytes
    return batches


def _no_room(actual: str) -> DataError:
    return DataError(
        "Streaming a CSV file needs room for its columns in a temporary file.",
        got=actual,
        fix="Set TMPDIR to a folder with more room, {at}stream=false to hold rows in memory, or convert to Parquet.",
    )
