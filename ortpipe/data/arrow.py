"""Columns of pyarrow as arrays: their values, their places in a list of values, and their pattern matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def plain_column(column: pa.Array | pa.ChunkedArray, *, coded: bool = False) -> pa.Array:
    """Return a column as one array of values, without chunks or a dictionary; views of text, as of polars, as text.

    If `coded`, text may keep a dictionary.
    """
    import pyarrow as pa

    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    has_dictionary = pa.types.is_dictionary(array.type)
    values = array.dictionary if has_dictionary else array
    values = values.cast("string") if pa.types.is_string_view(values.type) else values
    if not has_dictionary:
        return values
    encoded = pa.DictionaryArray.from_arrays(array.indices, values)
    return encoded if coded and is_text(values.type) and not values.null_count else encoded.dictionary_decode()


def distinct(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the distinct values of a column in order of appearance, and each row's place, null for a missing value.

    >>> import pyarrow as pa
    >>> column = pa.DictionaryArray.from_arrays([2, 0, None, 2], ["a", "b", "c"])
    >>> [part.to_pylist() for part in distinct(column)]
    [['c', 'a'], [0, 1, None, 0]]
    """
    codes = getattr(column, "indices", column)
    encoded = codes.dictionary_encode()
    values = encoded.dictionary if codes is column else column.dictionary.take(encoded.dictionary)
    return values, encoded.indices


def as_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column's values, nan for a missing number; decimals as float64."""
    if str(column.type).startswith("decimal"):
        column = column.cast("float64")
    return plain_column(column).to_numpy(zero_copy_only=False)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text, and not a dictionary of text."""
    return str(kind) in ("string", "large_string", "string_view")


def places(column: pa.Array | pa.ChunkedArray, values: Sequence[Any]) -> np.ndarray:
    """Return each value's place in `values`, -1 if it is not among them.

    >>> import pyarrow as pa
    >>> places(pa.array(["b", "a", "b", "c"]), ("a", "b")).tolist()
    [1, 0, 1, -1]
    """
    from pyarrow import array, compute

    values_array = plain_column(column)
    return (
        compute.index_in(values_array, value_set=array(values, values_array.type))
        .fill_null(-1)
        .to_numpy(zero_copy_only=False)
    )


def matches(column: pa.Array, pattern: str) -> np.ndarray:
    """Return which texts of a column contain a pattern."""
    import pyarrow.compute as pc

    matching = pc.match_substring_regex(column, pattern)
    return matching.fill_null(False).to_numpy(zero_copy_only=False)
