"""Arrays from lists, frames and series of pandas and Polars, and tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.errors import DataError


def arrays_of(rows: Rows, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of rows as arrays, with the names of the columns of frames."""
    names = {name: names for name, value in inputs.items() if (names := column_names(value))}
    return {
        "inputs": {name: as_array(f"input {name!r}", value) for name, value in inputs.items()},
        "label": as_array("label", rows.label),
        "sample_weight": None if rows.sample_weight is None else as_array("sample_weight", rows.sample_weight),
        "heads": {name: as_array(f"label of {name!r}", value) for name, value in rows.heads.items()},
        "columns": {**names, **rows.columns},
    }


def column_names(value: Any) -> tuple[str, ...]:
    """Return the names of a frame's columns; () for other values."""
    names = getattr(value, "column_names", None) or getattr(value, "columns", None)
    return () if isinstance(value, np.ndarray) or names is None else tuple(map(str, names))


def as_array(name: str, value: Any) -> np.ndarray:
    """Return a value as an array, an array unchanged; `name` is its name in error messages.

    >>> as_array("label", [1, 2]).tolist()
    [1, 2]
    """
    if isinstance(value, np.ndarray):
        return value
    sparse = hasattr(value, "toarray")
    listed = hasattr(value, "__array__") or (
        hasattr(value, "__len__") and not isinstance(value, str | bytes | dict | set)
    )
    if sparse or not listed:
        fix = "Call its toarray() first." if sparse else "Give an array with one entry per row."
        raise DataError("Rows must be given as arrays.", got=f"{name} of type {type(value).__name__}", fix=fix)
    if names := column_names(value):
        return _of_frame(name, value, names)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # the last: a tensor that needs its gradient
        rule = "Arrays must be rectangular and of one type."
        raise DataError(rule, got=f"{name}: {error}", fix="Check for ragged rows.") from error


def plain(column: Any) -> Any:
    """Return a pandas column of nullable integers or booleans, none missing, as a NumPy array; others unchanged.

    >>> import pandas as pd
    >>> plain(pd.Series([2, 1], dtype="Int64")).dtype, plain(pd.Series([True], dtype="boolean")).dtype
    (dtype('int64'), dtype('bool'))
    """
    dtype = getattr(getattr(column, "dtype", None), "numpy_dtype", None)
    return (
        np.asarray(column, dtype) if dtype is not None and dtype.kind in "biu" and not column.isna().any() else column
    )


def arrow_table(frame: Any, where: str) -> Any:
    """Return a frame as an Arrow table; reject columns of types that Arrow does not have."""
    import pyarrow as pa

    try:
        pandas = hasattr(frame, "iloc")
        return pa.Table.from_pandas(_without_intervals(frame), preserve_index=False) if pandas else pa.table(frame)
    except (pa.ArrowException, TypeError) as error:
        rule, fix = "Every column of a table must hold values of one type.", "Make it numbers, text or truth values."
        raise DataError(rule, got=f"{where}: {'; '.join(map(str, error.args))}", fix=fix) from error


def _without_intervals(frame: Any) -> Any:
    """Return a pandas frame with categories that are intervals, as pd.cut makes them, turned into words: (0, 1]."""

    def holds_intervals(dtype: Any) -> bool:
        return str(getattr(getattr(dtype, "categories", None), "dtype", "")).startswith("interval")

    names = [name for name, dtype in frame.dtypes.items() if holds_intervals(dtype)]
    words = {name: frame[name].astype(object).map(str, na_action="ignore") for name in names}
    return frame.assign(**words) if names else frame


def check_unique_columns(where: str, names: Sequence[str]) -> None:
    """Reject a table with two columns of the same name."""
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise DataError("Column names must be unique.", got=f"{duplicate!r} twice in {where}", fix="Rename one.")


def _of_frame(name: str, frame: Any, names: tuple[str, ...]) -> np.ndarray:
    """Return a frame's columns as one array [N, columns], in their common dtype."""
    check_unique_columns(name, names)
    keys = getattr(frame, "column_names", None) or list(frame.columns)
    columns = [np.asarray(frame[key]) for key in keys]
    for column, array in zip(names, columns, strict=True):
        if array.dtype.kind not in "biuf" and (len(columns) > 1 or name != "label"):
            raise DataError(
                "A frame of inputs may hold only numbers and truth values.",
                got=f"column {column!r} of {name}, of type {array.dtype}",
                fix="Encode it first, or use data=function: a function may return the frame, and the model encodes it.",
            )
    return np.stack(columns, axis=1)
