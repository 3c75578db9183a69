"""The text of a CSV file as batches of columns, in memory or in a temporary file.

Both give the same types and the same batches: one for each block of text that Arrow parses at a time.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from ortpipe.data.prefetch import prefetch
from ortpipe.data.spill import ArrayPlace, SpillFile, fits, folder
from ortpipe.errors import DataError

CONVERSION_ERROR = re.compile(r"In CSV column #(\d+):.* CSV conversion error to ")


@dataclass(frozen=True)
class CsvText:
    """A CSV file and Arrow's options for it.

    Attributes:
        file: the file.
        read, parse, convert: the options.
        check: raises if a table, or a batch and the number of its first row, holds bytes that are no text.
    """

    file: Path
    read: csv.ReadOptions
    parse: csv.ParseOptions
    convert: csv.ConvertOptions
    check: Callable[..., None]


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


def load_batches(text: CsvText) -> CsvBatches:
    """Read a whole file and return its batches."""
    table = csv.read_csv(text.file, text.read, text.parse, text.convert)
    text.check(table)
    batches = [batch for batch in table.to_batches() if len(batch)]
    return CsvBatches(table.schema, batches.__getitem__, list(map(len, batches)))


def spill_batches(text: CsvText) -> CsvBatches:
    """Read a file block by block into a temporary file, and again if a later block has other types.

    Raises:
        DataError: there is no room for the temporary file.
    """
    user_types = text.convert.column_types
    types, names = dict(user_types), list[str]()
    while True:
        text.convert.column_types = types
        try:
            with csv.open_csv(text.file, text.read, text.parse, text.convert) as blocks:
                names, types = (
                    blocks.schema.names,
                    {**dict(zip(blocks.schema.names, blocks.schema.types, strict=True)), **types},
                )
                return _spill_blocks(text, blocks)
        except pa.ArrowInvalid as error:
            match = CONVERSION_ERROR.match(str(error))
            name = names[int(match[1])] if match is not None and names else None
            wider_type = None if name is None or name in user_types else _wider_type(types[name])
            if name is None or wider_type is None:
                raise
            types = {**types, name: wider_type}


def _wider_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that Arrow tries next if not all values of a column are of this one."""
    moments = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
    kinds = [pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), *moments, pa.float64()]
    kinds += [pa.string(), pa.binary()]
    return kinds[kinds.index(kind) + 1] if kind in kinds[:-1] else None


def _spill_blocks(text: CsvText, blocks: csv.CSVStreamingReader) -> CsvBatches:
    """Write blocks to a temporary file and return its batches."""
    if not fits(size := text.file.stat().st_size):
        raise _no_room(f"{size / 1e6:,.0f} MB of {text.file}, and less than twice as much free space in {folder()}")
    try:
        file = SpillFile()
    except OSError as error:
        raise _no_room(f"{error}, in {folder()}") from error
    places, first = list[ArrayPlace](), 0

    def get(number: int) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(file.get(places[number])), blocks.schema)

    batches = CsvBatches(blocks.schema, get)
    for batch in prefetch(blocks):
        text.check(batch, first)
        first += len(batch)
        if len(batch):
            try:
                places.append(file.put(np.frombuffer(batch.serialize(), np.uint8)))
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
