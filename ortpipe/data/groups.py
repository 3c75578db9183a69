"""Groups of a table's rows: a file, a part of it, or a table in memory; and where a row is, for messages.

In a CSV file that is its line, as editors count; elsewhere its number, from 0.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBED, PIECE = 300, 2**17  # rows that choose candidates among columns, and rows that are read at a time
Position = Callable[[int], str]  # a row, counted from 0 → "line 9 of patients.csv"


def by_row(name: str = "") -> Position:
    """Return the position of rows by number, counted from 0."""
    return lambda row: f"row {row} of {name}" if name else f"row {row}"


def offset_position(position: Position, first: int) -> Position:
    """Return the position of rows that are counted from row `first` on.

    >>> offset_position(by_row("patients.parquet"), 10)(2)
    'row 12 of patients.parquet'
    """
    return lambda row: position(first + row)


def by_line(file: Path, delimiter: str = ",", encoding: str = "utf-8", *, names: bool = True) -> Position:
    """Return the position of rows by line of a CSV file; `names`: the first line holds the column names.

    There may be empty lines, and line breaks in quoted fields: each call reads the file up to the row.
    """
    return lambda row: f"line {_line(file, row + names, delimiter, encoding)} of {file}"


def _line(file: Path, record: int, delimiter: str, encoding: str) -> int:
    """Return the line in which a record begins; lines count from 1, records from 0."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with open_binary(file) as binary, io.TextIOWrapper(binary, encoding, "replace", newline="") as text:
            reader, line = csv.reader(text, delimiter=delimiter), 1
            for fields in reader:
                if fields and not record:
                    break
                record -= bool(fields)
                line = reader.line_num + 1
            return line
    finally:
        csv.field_size_limit(limit)


def open_binary(file: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file for reading, unpacked if it is a .gz file."""
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


@dataclass(frozen=True)
class Group:
    """Rows of a table that are read together, in pieces."""

    file: str  # its name in messages
    part: int | None  # of all its rows, as a place in `PARTS`; None if files do not define parts
    read: Callable[[list[str], int], Iterator[Any]]  # (columns, most) → record batches of at most `most` rows
    position: Position  # of its rows, in messages
    follows: bool = False  # it continues the group before: the digest must not depend on the cuts


def group_of(table: Any, name: str, part: int | None = None, position: Position | None = None) -> Group:
    """Return an Arrow table as a group."""
    read = lambda columns, most: iter(table.select(columns).to_batches(most))  # noqa: E731
    return Group(name, part, read, position or by_row(name))
