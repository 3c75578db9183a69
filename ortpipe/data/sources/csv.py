"""Tables in CSV files."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.data.files import files_of, paths_of
from ortpipe.data.rows import Rows
from ortpipe.data.table import TableSource, lay_out
from ortpipe.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from ortpipe.data.config import SplitConfig


@dataclass(frozen=True, kw_only=True)
class Csv(TableSource):
    """A CSV file, or a folder of them, in memory; types are read off the values.

    Attributes:
        path: the file (also `.gz`), or a folder whose `.csv` files are read, sorted by name.
        delimiter: between the fields of a line.
        names: the columns of a file whose first line is a row already; null: the first line names them.
    """

    path: str
    delimiter: str = ","
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1:
            fix = "Set data.source.delimiter=';', or \"\\t\" for a tab."
            raise ConfigError("data.source.delimiter is one character.", got=repr(self.delimiter), fix=fix)

    def __call__(self, split: SplitConfig | None = None) -> Rows:
        """Read every row."""
        from ortpipe.data.stream import Stream
        from ortpipe.data.table_reader import Group, TableReader

        found = [(f, n) for path, n in paths_of(self.path, split) for f in files_of(path, (".csv", ".csv.gz"))]
        tables = [self._read(file) for file, _ in found]
        schemas = {str(file): table.schema for (file, _), table in zip(found, tables, strict=True)}
        layout = lay_out(self, schemas, split.column if split else None)
        groups = [
            Group(str(file), 0, part, functools.partial(table.to_batches))
            for (file, part), table in zip(found, tables, strict=True)
        ]
        return Stream(TableReader(layout, groups)).rows()

    def _read(self, file: Path) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        wrong: list[csv.InvalidRow] = []

        def refuse(row: csv.InvalidRow) -> str:
            wrong.append(row)
            return "error"

        try:
            return csv.read_csv(
                file,
                csv.ReadOptions(use_threads=False, column_names=self.names),  # one thread counts its lines
                csv.ParseOptions(delimiter=self.delimiter, invalid_row_handler=refuse),
            )
        except pa.ArrowInvalid as error:
            line = f"line {wrong[0].number} has {wrong[0].actual_columns}: {wrong[0].text[:60]}" if wrong else error
            raise DataError(
                "A CSV file holds lines with one field per column."
                if not wrong
                else f"Every line of a CSV file has as many fields as the first ({wrong[0].expected_columns}).",
                got=f"{file}: {line}",
                fix="Check the file and data.source.delimiter.",
            ) from error
