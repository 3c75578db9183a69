"""Tables in Parquet files."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ortpipe.bounded import MOST_BYTES
from ortpipe.data.arrow import is_text
from ortpipe.data.config import SplitConfig
from ortpipe.data.files import Stamp, files_with_parts, stamp
from ortpipe.data.position import by_row, offset_position
from ortpipe.data.rows import RowSet
from ortpipe.data.stream import Windowed
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import Group, TableReader
from ortpipe.errors import DataError

BUFFER = 2**18  # bytes of a column that are read from disk at a time


@dataclass(frozen=True, kw_only=True)
class Parquet(TableSource, Windowed):
    """A Parquet file, or a folder of them; large ones are streamed, row group by row group.

    Attributes:
        path: the file, or a folder whose `.parquet` files are read, sorted by name.
    """

    path: str

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read all rows once to check them; return them in memory or as a stream."""
        schemas, groups = {}, []
        for file, part in files_with_parts(self.path, split, (".parquet",)):
            before = stamp(str(file))
            with _open(file) as opened_file:
                metadata, schemas[str(file)] = opened_file.metadata, opened_file.schema_arrow
            first = 0
            for number in range(metadata.num_row_groups):
                read = functools.partial(_tables, file, before, number)
                groups.append(Group(str(file), part, read, offset_position(by_row(str(file)), first)))
                first += metadata.row_group(number).num_rows
        return self.rows_of(TableReader(self, schemas, groups, split.column if split else None))


def parquet_schema(file: Path) -> pa.Schema:
    """Return the schema of a file."""
    with _open(file) as opened_file:
        return opened_file.schema_arrow


def parquet_batches(file: Path, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
    """Yield columns of a file, at most `most` rows at a time."""
    yield from _batches(file, list(columns), most)


@functools.lru_cache(maxsize=8)
def _metadata(file: Path, before: Stamp) -> parquet.FileMetaData:
    with _open(file) as opened_file:
        return opened_file.metadata


def _open(file: Path, metadata: parquet.FileMetaData | None = None, texts: Sequence[str] = ()) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(file, metadata=metadata, read_dictionary=texts, pre_buffer=False, buffer_size=BUFFER)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError("A Parquet file must be readable.", got=f"{file}: {error}", fix="Write it again.") from error


def _tables(file: Path, before: Stamp, group: int, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, at most `most` at a time; pyarrow.dataset would read the group at once."""
    if (now := stamp(str(file))) != before:
        raise DataError(
            "A file that is read for every epoch must stay as it was when it was first read.",
            got=f"{file}, which {'is gone' if now is None else 'was written anew'}",
            fix="Start again, and do not change the files during the run.",
        )
    yield from _batches(file, columns, most, _metadata(file, before), [group])


def _batches(
    file: Path,
    columns: list[str],
    most: int,
    metadata: parquet.FileMetaData | None = None,
    groups: list[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows, at most `most` at a time; Arrow would decode text that a dictionary holds once to any size."""
    with _open(file, metadata) as opened_file:
        schema, metadata = opened_file.schema_arrow, opened_file.metadata
    schema = pa.schema([schema.field(name) for name in columns])
    texts = [field.name for field in schema if is_text(field.type)]
    with _open(file, metadata, texts) as opened_file:
        for batch in opened_file.iter_batches(most, row_groups=groups, columns=columns, use_threads=False):
            for column in batch.select(texts).columns:
                lengths = pc.binary_length(column.dictionary).take(column.indices)
                if (size := pc.sum(lengths, min_count=0).as_py()) > MOST_BYTES:
                    rule = f"The text of a column in one row group must have at most {MOST_BYTES:,} bytes."
                    raise DataError(rule, got=f"{size:,} in {file}", fix="Write the file with smaller row groups.")
            yield batch.select(columns).cast(schema)
