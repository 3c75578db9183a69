"""DataFrames whose raw columns become inputs: words, dates, and numbers with missing values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ortpipe.data.frames import check_unique_columns, column_names, without_intervals
from ortpipe.data.raw_columns import Kind, RawColumn, numbers, texts
from ortpipe.errors import DataError


class FrameInputs(NamedTuple):
    """The inputs of rows, and the kinds of those that are raw columns."""

    arrays: Mapping[str, np.ndarray]
    raw_columns: Mapping[str, RawColumn]

    def take(self, rows: np.ndarray) -> "FrameInputs":
        """Return the inputs of some rows."""
        return FrameInputs({name: array[rows] for name, array in self.arrays.items()}, self.raw_columns)


def kinds_of(X: Any, model: Any) -> dict[str, Kind] | None:
    """Return the kind of each column of a DataFrame; None if all are numbers and form one input.

    For a model that selects columns by name (a ColumnTransformer in a Pipeline), each is an input of its own, too.
    """
    if not column_names(X):
        return None
    table = _table(X)
    kinds = {name: _kind(column.type) for name, column in zip(table.column_names, table.columns, strict=True)}
    plain = all(kind == "number" for kind in kinds.values()) and not any(_has_missing(c) for c in table.columns)
    return None if plain and not _selects_columns(model) else kinds


def read(X: Any, kinds: Mapping[str, Kind]) -> FrameInputs:
    """Return the raw columns of a DataFrame, each as the kind that it had when the model was fitted."""
    if not column_names(X):
        raise DataError(
            "Rows must have the same named columns as the first ones.",
            got=f"an array, of type {type(X).__name__}",
            fix=f"Give a DataFrame with {', '.join(list(kinds)[:10])}.",
        )
    table, arrays, raw_columns = _table(X), dict[str, np.ndarray](), dict[str, RawColumn]()
    for name, kind in kinds.items():
        column = table.column(name).combine_chunks()
        if kind == "number":
            if _kind(column.type) != "number" and len(column) > column.null_count:
                rule, fix = "A column must hold numbers if it did when the model was fitted.", "Give it as numbers."
                raise DataError(rule, got=f"column {name!r} of {column.type}", fix=fix)
            arrays[name] = numbers(column.cast("float64"), np.dtype(np.float64))
            raw_columns[name] = RawColumn(kind, int(np.isnan(arrays[name]).sum()))
        else:
            words, places = texts(_decoded(column))
            arrays[name] = words[places]
            raw_columns[name] = RawColumn(kind, int((arrays[name] == "").sum()))
    return FrameInputs(arrays, raw_columns)


def _table(frame: Any) -> Any:
    import pyarrow as pa

    check_unique_columns("X", column_names(frame))
    try:
        if hasattr(frame, "iloc"):
            return pa.Table.from_pandas(without_intervals(frame.rename(columns=str)), preserve_index=False)
        return frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        rule, fix = "Every column of a table must hold values of one type.", "Make it numbers, strings or booleans."
        raise DataError(rule, got="; ".join(map(str, error.args)), fix=fix) from error


def _kind(dtype: Any) -> Kind:
    import pyarrow as pa

    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "number"
    return "date" if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype) else "word"


def _has_missing(column: Any) -> bool:
    return bool(column.null_count or np.isnan(column.cast("float64").to_numpy()).any())


def _decoded(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):  # polars uses a string type that cannot be decoded
        words = column.dictionary.cast("string")
        return pa.DictionaryArray.from_arrays(column.indices, words).dictionary_decode()
    if pa.types.is_nested(column.type):
        rule, fix = "A column of a table must hold numbers, strings, booleans or dates.", "Split it into columns."
        raise DataError(rule, got=f"a column of {column.type}", fix=fix)
    return column.cast("string") if _kind(column.type) != "date" else column


def _selects_columns(model: Any) -> bool:
    from sklearn.compose import ColumnTransformer

    parts = model.get_params().values() if hasattr(model, "fit") and hasattr(model, "get_params") else ()
    return any(isinstance(part, ColumnTransformer) for part in (model, *parts))
