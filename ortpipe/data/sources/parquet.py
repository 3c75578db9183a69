"""Tables in Parquet files."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.data.config import SplitConfig
from ortpipe.data.files import files_of, paths_of
from ortpipe.data.rows import RowSet
from ortpipe.data.schema import lay_out
from ortpipe.data.stream import WINDOW, check_window, opened
from ortpipe.data.table import TableSource
from ortpipe.data.table_reader import Group, TableReader
from ortpipe.errors import DataError
from ortpipe.settings import Count

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

BUFFER = 2**18  # bytes of a column that are read from disk at a time


@dataclass(frozen=True, kw_only=True)
class Parquet(TableSource):
    """A Parquet file, or a folder of them; one that does not fit in memory streams, row group by row group.

    Attributes:
        path: the file, or a folder whose `.parquet` files are read, sorted by name.
        stream: read rows anew for every epoch; null: where they take more than 256 MiB.
        window: MiB of rows that are shuffled together, whether they stream or not; null: all, which never stream.
    """

    path: str
    stream: bool | None = None
    window: Count | None = WINDOW

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.stream, self.window)

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read every row once, to check it and to learn the categories; then hold them or stream."""
        files = [(file, part) for path, part in paths_of(self.path, split) for file in files_of(path, (".parquet",))]
        metadata, schemas = {}, {}
        for file, _ in files:
            with _open(file) as opened_file:
                metadata[file], schemas[str(file)] = opened_file.metadata, opened_file.schema_arrow
        layout = lay_out(self, schemas, split.column if split else None)
        groups = []
        for file, part in files:
            first = 0
            for number in range(metadata[file].num_row_groups):
                read = functools.partial(_tables, file, number, layout.used)
                groups.append(Group(str(file), first, part, read))
                first += metadata[file].row_group(number).num_rows
        return opened(TableReader(layout, groups), self.stream, self.window)


@functools.lru_cache(maxsize=8)
def _metadata(file: Path, changed: int) -> parquet.FileMetaData:
    with _open(file) as opened_file:
        return opened_file.metadata


def _open(file: Path, metadata: parquet.FileMetaData | None = None) -> parquet.ParquetFile:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=BUFFER)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError("A Parquet file must be readable.", got=f"{file}: {error}", fix="Write it again.") from error


def _tables(file: Path, group: int, columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, at most so many at a time; pyarrow.dataset would hold the group as a whole."""
    with _open(file, _metadata(file, file.stat().st_mtime_ns)) as opened_file:
        yield from opened_file.iter_batches(most, row_groups=[group], columns=columns, use_threads=False)
