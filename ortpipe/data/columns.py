"""A table's columns as arrays: numbers as they are, text as one column a value or as the value's place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.data.arrow import as_numpy, places, plain
from ortpipe.data.config import PARTS
from ortpipe.data.rows import Category, Rows, row_bytes
from ortpipe.data.table import TableSource
from ortpipe.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Categories = Mapping[str, tuple[Category, ...]]
MANY_INPUTS, MANY_OF_ONE = 1000, 100  # beyond these, a user has surely not meant so many
LISTED = 12


@dataclass(frozen=True)
class Layout:
    """Which columns of a table are read, as what.

    Attributes:
        source: what the user says of the columns.
        inputs: input → its columns.
        part: the column that says which part a row is in.
        dtypes: column of numbers → its NumPy type; a column that is not here has categories.
    """

    source: TableSource
    inputs: Mapping[str, tuple[str, ...]]
    part: str | None
    dtypes: Mapping[str, np.dtype]

    @property
    def used(self) -> list[str]:
        """Every column that is read, once."""
        others = filter(None, (*self.source.labels, self.source.sample_weight, self.part))
        return list(dict.fromkeys([*others, *(name for names in self.inputs.values() for name in names)]))

    @property
    def numeric(self) -> tuple[str, ...]:
        """The columns that are of use as numbers only: row weights, and labels where there are several."""
        labels = () if isinstance(self.source.label, str) else self.source.labels
        return (*labels, *((self.source.sample_weight,) if self.source.sample_weight else ()))

    @property
    def encoded(self) -> list[str]:
        """The columns of inputs that have categories."""
        return [n for n in dict.fromkeys(n for names in self.inputs.values() for n in names) if n not in self.dtypes]

    @property
    def key(self) -> list[Any]:
        """What tells layouts of the same columns apart, as JSON values."""
        columns = [self.source.labels, self.source.sample_weight, self.part, list(self.inputs.items())]
        encodings = [self.source.encode_of(name) for name in self.inputs]
        return [columns, encodings, [(name, str(dtype)) for name, dtype in self.dtypes.items()]]

    def one_hot(self, column: str) -> bool:
        """Return whether any input has a column of 0 and 1 for each value of this one."""
        return any(column in names and self.source.encode_of(name) == "one_hot" for name, names in self.inputs.items())

    def row_bytes(self, categories: Categories) -> int:
        """Return the bytes of one row's inputs, as `rows.row_bytes`."""
        return row_bytes((self.dtype(name), (1, len(self.names(name, categories)))) for name in self.inputs)

    def dtype(self, name: str) -> np.dtype:
        """Return the type of an input's array: the one that holds all its columns."""
        text: Any = np.float32 if self.source.encode_of(name) == "one_hot" else np.int64
        return np.result_type(*(self.dtypes.get(column, text) for column in self.inputs[name]))

    def names(self, name: str, categories: Categories) -> tuple[str, ...]:
        """Return the names of an input's columns, `city=Rome` for a value's own."""
        one_hot = self.source.encode_of(name) == "one_hot"
        return tuple(
            f"{column}={value}" if one_hot and column in categories else column
            for column in self.inputs[name]
            for value in (categories.get(column, ("",)) if one_hot else ("",))
        )

    def rows(self, table: pa.Table | pa.RecordBatch, categories: Categories, part: int | None = None) -> Rows:
        """Return a table that has been checked as rows, all of them in a part if one is given."""
        columns = {name: self.names(name, categories) for name in self.inputs}
        inputs = {}
        for name, wanted in self.inputs.items():
            array = np.zeros((table.num_rows, len(columns[name])), self.dtype(name))
            at = 0
            for column in wanted:
                if column not in categories:
                    array[:, at] = self.numbers(table, column)
                elif self.source.encode_of(name) == "index":
                    array[:, at] = _codes(self.column(table, column), categories[column])
                else:
                    array[np.arange(len(array)), at + _codes(self.column(table, column), categories[column])] = 1
                    at += len(categories[column]) - 1
                at += 1
            inputs[name] = array
        weight = self.source.sample_weight
        parts = None if part is None else np.full(table.num_rows, part, np.int8)
        if self.part is not None:
            parts = _codes(table.column(self.part), PARTS).astype(np.int8)
        return Rows(
            inputs=inputs,
            label=self.label(table),
            sample_weight=None if weight is None else self.numbers(table, weight),
            columns=columns,
            categories=categories,
            part=parts,
        )

    def column(self, table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
        """Return a column's values; as text where the user says that they are words."""
        values = plain(table.column(name))
        return values.cast("string") if name in self.source.categorical else values

    def numbers(self, table: pa.Table | pa.RecordBatch, column: str) -> np.ndarray:
        """Return a column of numbers."""
        return as_numpy(table.column(column)).astype(self.dtypes[column], copy=False)

    def label(self, table: pa.Table | pa.RecordBatch) -> np.ndarray:
        """Return the labels, [N] or one column each: numbers, text, or 0 and 1 for false and true."""
        if not isinstance(self.source.label, str):
            return np.stack([self.numbers(table, name) for name in self.source.labels], axis=1)
        if self.source.label in self.dtypes:
            return self.numbers(table, self.source.label)
        values = np.array(self.column(table, self.source.label).to_pylist())
        return values.astype(np.int64) if values.dtype == bool else values


def _codes(column: pa.Array, values: tuple[Category, ...]) -> np.ndarray:
    """Return each value's place among the values that a column had when it was first read."""
    found = places(column, values)
    if (found < 0).any():
        raise DataError(
            "A column holds the values that it had when it was first read.",
            got=f"another value than {', '.join(map(repr, values[:5]))} …",
            fix="Start again, and leave the files as they are meanwhile.",
        )
    return found


def notes_of_inputs(layout: Layout, categories: Categories) -> list[str]:
    """Return how many inputs came from which columns, and a warning where they are surely too many."""
    notes = []
    for name, columns in layout.inputs.items():
        one_hot = layout.source.encode_of(name) == "one_hot"
        widths = {column: len(categories[column]) if one_hot and column in categories else 1 for column in columns}
        total, widest = sum(widths.values()), sorted(widths, key=lambda column: -widths[column])
        shown = [column if widths[column] == 1 else f"{column} {widths[column]}" for column in widest[:LISTED]]
        more = [f"{len(widest) - LISTED:,} more"] if len(widest) > LISTED else []
        whose = f"{name}: " if len(layout.inputs) > 1 else ""
        notes.append(
            f"{whose}{_count(total, 'input')} from {_count(len(widths), 'column')}: {', '.join(shown + more)}; "
            f"label {', '.join(layout.source.labels)}"
        )
        if widths[widest[0]] > MANY_OF_ONE or total > MANY_INPUTS:
            notes.append(
                f"warning: {whose}{total:,} inputs, {widths[widest[0]]:,} of them from column {widest[0]!r}: choose "
                "columns with data.source.inputs, or read values as their places with data.source.encode=index"
            )
        if places := [column for column in columns if column in categories and not one_hot]:
            notes.append(
                f"{whose}{', '.join(places[:LISTED])}: each value is its place in sorted order (encode=index), which "
                "is right for a model that looks it up; one that multiplies it takes it for an amount"
            )
    return notes


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
