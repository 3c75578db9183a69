"""The text of a CSV file as batches of columns: in memory, or laid down in a file without a name.

Both ways give the same types and the same batches, one for each block of text that Arrow parses at a time.
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

NO_KIND = re.compile(r"In CSV column #(\d+):.* CSV conversion error to ")


@dataclass(frozen=True)
class CsvText:
    """A file and how it is read.

    Attributes:
        file: the file.
        read, parse, convert: how.
        check: refuses what is no text in a table, or in a batch whose first row has this number.
    """

    file: Path
    read: csv.ReadOptions
    parse: csv.ParseOptions
    convert: csv.ConvertOptions
    check: Callable[..., None]


@dataclass
class CsvBatches:
    """The batches of a file that have rows.

    Attributes:
        schema: their columns.
        get: returns a batch by its number.
        lengths: the rows of each.
        size: bytes that they take in a temporary file.
    """

    schema: pa.Schema
    get: Callable[[int], pa.RecordBatch]
    lengths: list[int] = field(default_factory=list)
    size: int = 0

    def read(self, number: int, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a batch, at most so many rows at a time."""
        if self.lengths:
            batch = self.get(number).select(columns)
            yield from (batch.slice(first, most) for first in range(0, len(batch), most))

    def note(self, file: str) -> str:
        """Return what is said of the temporary file."""
        size = max(1, round(self.size / 1e6))
        where = f"{folder()} (TMPDIR), in a file without a name that ends with the process"
        return f"the columns of {file}, {size:,} MB, are in {where}"


def load_batches(text: CsvText) -> CsvBatches:
    """Return the batches of a file that is read as a whole."""
    table = csv.read_csv(text.file, text.read, text.parse, text.convert)
    text.check(table)
    batches = [batch for batch in table.to_batches() if len(batch)]
    return CsvBatches(table.schema, batches.__getitem__, list(map(len, batches)))


def spill_batches(text: CsvText) -> CsvBatches:
    """Return the batches of a file that is read once, block by block, and again where a later block is of other types.

    Raises:
        DataError: there is no room for the temporary file.
    """
    said = text.convert.column_types
    types, names = dict(said), list[str]()
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
            found = NO_KIND.match(str(error))
            name = names[int(found[1])] if found is not None and names else None
            looser = None if name is None or name in said else _wider_type(types[name])
            if name is None or looser is None:
                raise
            types = {**types, name: looser}


def _wider_type(kind: pa.DataType) -> pa.DataType | None:
    """Return what Arrow takes a column for, where not all of its values are of this type."""
    moments = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
    kinds = [pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), *moments, pa.float64()]
    kinds += [pa.string(), pa.binary()]
    return kinds[kinds.index(kind) + 1] if kind in kinds[:-1] else None


def _spill_blocks(text: CsvText, blocks: csv.CSVStreamingReader) -> CsvBatches:
    """Write blocks to a temporary file."""
    if not fits(size := text.file.stat().st_size):
        raise _no_room(f"{size / 1e6:,.0f} MB of {text.file}, and too little room for as much in {folder()}")
    file, places, first = SpillFile(), list[ArrayPlace](), 0

    def get(number: int) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(file.get(places[number])), blocks.schema)

    laid = CsvBatches(blocks.schema, get)
    for batch in prefetch(blocks):
        text.check(batch, first)
        first += len(batch)
        if len(batch):
            try:
                places.append(file.put(np.frombuffer(batch.serialize(), np.uint8)))
            except OSError as error:
                raise _no_room(f"{error}, in {folder()}") from error
            laid.lengths.append(len(batch))
            laid.size += batch.nbytes
    return laid


def _no_room(got: str) -> DataError:
    return DataError(
        "The columns of a CSV file that streams are laid down in a temporary file.",
        got=got,
        fix="Set TMPDIR to a folder with more room, {at}stream=false to hold the rows in memory, or write Parquet.",
    )
