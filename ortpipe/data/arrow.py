"""Columns of pyarrow as arrays: their values, their places among others, and which of them match a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array of its own values, not of a dictionary's places."""
    whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return whole.dictionary_decode() if hasattr(whole, "dictionary_decode") else whole


def as_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column's values, nan for a missing number; decimals as float64."""
    if str(column.type).startswith("decimal"):
        column = column.cast("float64")
    return plain(column).to_numpy(zero_copy_only=False)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column is of text, and not of a dictionary's categories."""
    return str(kind) in ("string", "large_string")


def places(column: pa.Array | pa.ChunkedArray, values: Sequence[Any]) -> np.ndarray:
    """Return each value's place among others, -1 where it is none of them.

    >>> import pyarrow as pa
    >>> places(pa.array(["b", "a", "b", "c"]), ("a", "b")).tolist()
    [1, 0, 1, -1]
    """
    from pyarrow import array, compute

    whole = plain(column)
    return compute.index_in(whole, value_set=array(values, whole.type)).fill_null(-1).to_numpy(zero_copy_only=False)


def matches(column: pa.Array, pattern: str) -> np.ndarray:
    """Return which texts of a column hold a pattern, letters of either case."""
    import pyarrow.compute as pc

    found = pc.match_substring_regex(column, pattern, ignore_case=True)
    return found.fill_null(False).to_numpy(zero_copy_only=False)
