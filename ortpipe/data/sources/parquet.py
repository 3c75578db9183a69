"""Tables in Parquet files."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.data.files import files_of, paths_of
from ortpipe.data.rows import Rows
from ortpipe.data.table import TableSource, lay_out
from ortpipe.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

    from ortpipe.data.config import SplitConfig
    from ortpipe.data.stream import Stream

BUFFER = 2**18  # bytes of a column that are read from disk at a time


@dataclass(frozen=True, kw_only=True)
class Parquet(TableSource):
    """A Parquet file, or a folder of them; one that does not fit in memory streams, row group by row group.

    Attributes:
        path: the file, or a folder whose `.parquet` files are read, sorted by name.
        stream: read rows anew for every epoch; null: where they take more than 256 MiB.
    """

    path: str
    stream: bool | None = None

    def __call__(self, split: SplitConfig | None = None) -> Rows | Stream:
        """Read every row once, to check it and to learn the categories; then hold them or stream."""
        from ortpipe.data.stream import opened
        from ortpipe.data.table_reader import Group, TableReader

        found = [(f, n) for path, n in paths_of(self.path, split) for f in files_of(path, (".parquet",))]
        metadata, schemas = {}, {}
        for file, _ in found:
            with _open(file) as opened_file:
                metadata[file], schemas[str(file)] = opened_file.metadata, opened_file.schema_arrow
        layout = lay_out(self, schemas, split.column if split else None)
        groups = []
        for file, part in found:
            first = 0
            for number in range(metadata[file].num_row_groups):
                read = functools.partial(_tables, file, number, layout.used)
                groups.append(Group(str(file), first, part, read))
                first += metadata[file].row_group(number).num_rows
        return opened(TableReader(layout, groups), self.stream)


@functools.lru_cache(maxsize=8)
def _metadata(file: Path, changed: int) -> parquet.FileMetaData:
    with _open(file) as opened:
        return opened.metadata


def _open(file: Path, metadata: parquet.FileMetaData | None = None) -> parquet.ParquetFile:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=BUFFER)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError("A Parquet file must be readable.", got=f"{file}: {error}", fix="Write it again.") from error


def _tables(file: Path, group: int, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, at most so many at a time; nothing else of it is held."""
    with _open(file, _metadata(file, file.stat().st_mtime_ns)) as opened:
        yield from opened.iter_batches(most, row_groups=[group], columns=columns, use_threads=False)
