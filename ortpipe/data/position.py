"""Where a row is, as messages say it: of a CSV file its line, as an editor counts; elsewhere its number, from 0."""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

Position = Callable[[int], str]  # a row, counted from 0 → "line 9 of patients.csv"


def by_row(name: str = "") -> Position:
    """Return the positions of rows by their numbers, which count from 0."""
    return lambda row: f"row {row} of {name}" if name else f"row {row}"


def offset_position(position: Position, first: int) -> Position:
    """Return the positions of the rows from this one on.

    >>> offset_position(by_row("patients.parquet"), 10)(2)
    'row 12 of patients.parquet'
    """
    return lambda row: position(first + row)


def by_line(file: Path, delimiter: str = ",", encoding: str = "utf-8", *, names: bool = True) -> Position:
    """Return the positions of rows by lines of a CSV file, whose first line holds the names of columns or none.

    A row may follow empty lines, and a quoted field may hold several: the file is read up to the row, when it is asked.
    """
    return lambda row: f"line {_line(file, row + names, delimiter, encoding)} of {file}"


def _line(file: Path, record: int, delimiter: str, encoding: str) -> int:
    """Return the line in which a record begins, both counted as they are named: lines from 1, records from 0."""
    read = gzip.open if file.suffix == ".gz" else open
    with read(file, "rt", encoding=encoding, errors="replace", newline="") as text:
        reader, line = csv.reader(text, delimiter=delimiter), 1
        limit = csv.field_size_limit(2**31 - 1)
        try:
            for fields in reader:
                if fields and not record:
                    return line
                record -= bool(fields)
                line = reader.line_num + 1
        finally:
            csv.field_size_limit(limit)
    return line
