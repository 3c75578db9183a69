"""Tables in Parquet files."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ortpipe.bounded import MOST_BYTES
from ortpipe.data.arrow import is_text
from ortpipe.data.files import Stamp, files_with_parts, stamp
from ortpipe.data.groups import Group, by_row, offset_position
from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.stream import Windowed
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import TableReader
from ortpipe.errors import DataError

BUFFER = 2**18  # bytes of a column that are read from disk at a time


@dataclass(frozen=True, kw_only=True)
class Parquet(TableSource, Windowed):
    """A Parquet file, or a folder of them; large ones are streamed, row group by row group.

    Attributes:
        path: the file, or a folder whose `.parquet` files are read, sorted by name.
    """

    endings: ClassVar[tuple[str, ...]] = (".parquet",)

    path: str

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read all rows once to check them; return them in memory or as a stream."""
        schemas, groups = {}, []
        for file, part in files_with_parts(self.path, split, self.endings):
            before, first = stamp(str(file)), 0
            metadata = _metadata(file, before)
            schemas[str(file)] = metadata.schema.to_arrow_schema()
            for number in range(metadata.num_row_groups):
                read = functools.partial(_batches, file, before, [number])
                groups.append(Group(str(file), part, read, offset_position(by_row(str(file)), first)))
                first += metadata.row_group(number).num_rows
        return self.rows_of(TableReader(self, schemas, groups, split))

    def new_rows(self, columns: Sequence[str]) -> tuple[pa.Schema, Group]:
        """Return the schema and the rows of the file."""
        file, before = Path(self.path), stamp(self.path)
        group = Group(self.path, None, functools.partial(_batches, file, before, None), by_row(self.path))
        return _metadata(file, before).schema.to_arrow_schema(), group


@functools.lru_cache(maxsize=8)
def _metadata(file: Path, before: Stamp) -> parquet.FileMetaData:
    with _open(file) as opened_file:
        return opened_file.metadata


def _open(file: Path, metadata: parquet.FileMetaData | None = None, texts: Sequence[str] = ()) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(file, metadata=metadata, read_dictionary=texts, pre_buffer=False, buffer_size=BUFFER)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError("A Parquet file must be readable.", got=f"{file}: {error}", fix="Write it again.") from error


def _batches(
    file: Path, before: Stamp, groups: list[int] | None, columns: Sequence[str], most: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows, at most `most` at a time; pyarrow.dataset would read a row group at once.

    Text comes as a dictionary, which may hold a text once for any number of rows.
    """
    if (now := stamp(str(file))) != before:
        raise DataError(
            "A file that is read for every epoch must stay as it was when it was first read.",
            got=f"{file}, which {'is gone' if now is None else 'was written anew'}",
            fix="Start again, and do not change the files during the run.",
        )
    metadata = _metadata(file, before)
    schema = metadata.schema.to_arrow_schema()
    texts = [name for name in columns if is_text(schema.field(name).type)]
    with _open(file, metadata, texts) as opened_file:
        for batch in opened_file.iter_batches(most, row_groups=groups, columns=list(columns), use_threads=False):
            for name in texts:
                _check_size(batch.column(name), file)
            yield batch.select(list(columns))


def _check_size(column: pa.DictionaryArray, file: Path) -> None:
    """Reject text that takes too many bytes when each row has its own copy."""
    lengths = pc.binary_length(column.dictionary)
    if (pc.max(lengths).as_py() or 0) * len(column) > MOST_BYTES:
        size = pc.sum(lengths.take(column.indices), min_count=0).as_py()
        if size > MOST_BYTES:
            rule = f"The text of a column in one row group must have at most {MOST_BYTES:,} bytes."
            raise DataError(rule, got=f"{size:,} in {file}", fix="Write the file with smaller row groups.")
