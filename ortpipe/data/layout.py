"""A table's columns as arrays: numbers as they are, text as one column a value or as the value's place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortpipe.data.rows import PARTS, Category, Rows
from ortpipe.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from ortpipe.data.table import TableSource


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
    def labels(self) -> tuple[str, ...]:
        """The columns of labels."""
        return (self.source.label,) if isinstance(self.source.label, str) else self.source.label

    @property
    def used(self) -> list[str]:
        """Every column that is read, once."""
        others = filter(None, (*self.labels, self.source.sample_weight, self.part))
        return list(dict.fromkeys([*others, *(name for names in self.inputs.values() for name in names)]))

    @property
    def numeric(self) -> tuple[str, ...]:
        """The columns that are of use as numbers only: row weights, and labels where there are several."""
        labels = () if isinstance(self.source.label, str) else self.labels
        return (*labels, *((self.source.sample_weight,) if self.source.sample_weight else ()))

    @property
    def encoded(self) -> list[str]:
        """The columns of inputs that have categories."""
        return [n for n in dict.fromkeys(n for names in self.inputs.values() for n in names) if n not in self.dtypes]

    def digest(self) -> Any:
        """Return the beginning of a sha256 of tables: what is read as what."""
        said = [self.labels, self.source.sample_weight, self.part, list(self.inputs.items())]
        encodings = [self.source.encode_of(name) for name in self.inputs]
        return hashlib.sha256(json.dumps([said, encodings, [(n, str(t)) for n, t in self.dtypes.items()]]).encode())

    def one_hot(self, column: str) -> bool:
        """Return whether any input has a column of 0 and 1 for each value of this one."""
        return any(column in names and self.source.encode_of(name) == "one_hot" for name, names in self.inputs.items())

    def row_bytes(self, categories: Mapping[str, tuple[Category, ...]]) -> int:
        """Return the bytes of one row as arrays."""
        inputs = sum(len(self.names(name, categories)) * self.dtype(name).itemsize for name in self.inputs)
        others = (*self.labels, self.source.sample_weight) if self.source.sample_weight else self.labels
        return inputs + sum(self.dtypes[name].itemsize if name in self.dtypes else 8 for name in others)

    def dtype(self, name: str) -> np.dtype:
        """Return the type of an input's array: the one that holds all its columns."""
        import numpy as np

        text: Any = np.float32 if self.source.encode_of(name) == "one_hot" else np.int64
        return np.result_type(*(self.dtypes.get(column, text) for column in self.inputs[name]))

    def names(self, name: str, categories: Mapping[str, tuple[Category, ...]]) -> tuple[str, ...]:
        """Return the names of an input's columns, `city=Rome` for a value's own."""
        one_hot = self.source.encode_of(name) == "one_hot"
        return tuple(
            f"{column}={value}" if one_hot and column in categories else column
            for column in self.inputs[name]
            for value in (categories.get(column, ("",)) if one_hot else ("",))
        )

    def rows(
        self, table: pa.Table | pa.RecordBatch, categories: Mapping[str, tuple[Category, ...]], part: int | None = None
    ) -> Rows:
        """Return a table that has been checked as rows, all of them in a part if one is given."""
        import numpy as np

        columns = {name: self.names(name, categories) for name in self.inputs}
        inputs = {}
        for name, wanted in self.inputs.items():
            array = np.zeros((table.num_rows, len(columns[name])), self.dtype(name))
            at = 0
            for column in wanted:
                if column not in categories:
                    array[:, at] = self.numbers(table, column)
                elif self.source.encode_of(name) == "index":
                    array[:, at] = codes(self.column(table, column), categories[column])
                else:
                    array[np.arange(len(array)), at + codes(self.column(table, column), categories[column])] = 1
                    at += len(categories[column]) - 1
                at += 1
            inputs[name] = array
        weight = self.source.sample_weight
        parts = None if part is None else np.full(table.num_rows, part, np.int8)
        return Rows(
            inputs=inputs,
            label=self.label(table),
            sample_weight=None if weight is None else self.numbers(table, weight),
            columns=columns,
            categories=categories,
            part=codes(table.column(self.part), PARTS).astype(np.int8) if self.part is not None else parts,
        )

    def column(self, table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
        """Return a column's values; as text where the user says that they are words."""
        import pyarrow as pa

        values = plain(table.column(name))
        return values.cast(pa.string()) if name in self.source.categorical else values

    def numbers(self, table: pa.Table | pa.RecordBatch, column: str) -> np.ndarray:
        """Return a column of numbers."""
        return as_numpy(table.column(column)).astype(self.dtypes[column], copy=False)

    def label(self, table: pa.Table | pa.RecordBatch) -> np.ndarray:
        """Return the labels, [N] or one column each: numbers, text, or 0 and 1 for false and true."""
        import numpy as np

        if not isinstance(self.source.label, str):
            return np.stack([self.numbers(table, name) for name in self.labels], axis=1)
        if self.source.label in self.dtypes:
            return self.numbers(table, self.source.label)
        values = np.array(self.column(table, self.source.label).to_pylist())
        return values.astype(np.int64) if values.dtype == bool else values


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array of its own values, not of a dictionary's places."""
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):  # of no chunks
        whole = pa.array([], whole.type)
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


def as_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers; decimals as float64."""
    import pyarrow as pa

    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return plain(column).to_numpy(zero_copy_only=False)


def codes(column: pa.Array | pa.ChunkedArray, values: tuple[Category, ...]) -> np.ndarray:
    """Return each value's place.

    >>> import pyarrow as pa
    >>> codes(pa.array(["b", "a", "b"]), ("a", "b")).tolist()
    [1, 0, 1]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    own = plain(column)
    places = pc.index_in(own, value_set=pa.array(values, own.type))
    if places.null_count:
        raise DataError(
            "A column holds the values that it had when it was first read.",
            got=f"another value than {', '.join(map(repr, values[:5]))} …",
            fix="Start again, and leave the files as they are meanwhile.",
        )
    return places.to_numpy(zero_copy_only=False)
