"""DataFrames whose raw columns become inputs: words, dates, and numbers with missing values."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ortpipe.data import (
    RawColumn,
    arrow_table,
    by_row,
    check_kinds,
    check_unique_columns,
    column_names,
    in_form,
    kind_of,
    numbers,
    plain_column,
    texts,
)
from ortpipe.errors import DataError


class FrameInputs(NamedTuple):
    """The inputs of rows, and the kinds of the raw columns among them."""

    arrays: Mapping[str, np.ndarray]
    raw_columns: Mapping[str, RawColumn]

    def take(self, rows: np.ndarray) -> "FrameInputs":
        """Return the inputs of some rows."""
        return FrameInputs({name: array[rows] for name, array in self.arrays.items()}, self.raw_columns)


def columns_of(X: Any, model: Any) -> dict[str, RawColumn] | None:
    """Return a description of each column of a DataFrame; None if all are numbers and form one input.

    For a model that selects columns by name (a ColumnTransformer in a Pipeline), each is an input of its own, too.
    """
    if not column_names(X):
        return None
    table = _table(X)
    columns = {field.name: _describe(field.type) for field in table.schema}
    is_plain = all(column.kind == "number" for column in columns.values()) and not any(map(_has_missing, table.columns))
    return None if is_plain and not _selects_columns(model) else columns


def read(X: Any, columns: Mapping[str, RawColumn]) -> FrameInputs:
    """Return the raw columns of a DataFrame, each as the kind that it had when the model was fitted."""
    if not column_names(X):
        raise DataError(
            "Rows must have the same named columns as the first ones.",
            got=f"an array, of type {type(X).__name__}",
            fix=f"Give a DataFrame with {', '.join(list(columns)[:10])}.",
        )
    table, arrays, raw_columns = _table(X), dict[str, np.ndarray](), dict[str, RawColumn]()
    for name, fitted in columns.items():
        column = plain_column(table.column(name))
        if fitted.kind == "number":
            if kind_of(column.type) != "number" and len(column) > column.null_count:
                rule, fix = "A column must hold numbers if it did when the model was fitted.", "Give it as numbers."
                raise DataError(rule, got=f"column {name!r} of {column.type}", fix=fix)
            arrays[name] = numbers(column, np.dtype(np.float64))
            missing = np.isnan(arrays[name])
        else:
            words, places = texts(column if kind_of(column.type) == "date" else column.cast("string"))
            words = in_form(fitted.of or fitted.kind, name, words, places, by_row("X"))
            arrays[name] = words[places]
            missing = arrays[name] == ""
        raw_columns[name] = dataclasses.replace(fitted, missing=int(missing.sum()))
    return FrameInputs(arrays, raw_columns)


def _table(frame: Any) -> Any:
    check_unique_columns("X", column_names(frame))
    table = arrow_table(frame.rename(columns=str) if hasattr(frame, "iloc") else frame, "X")
    check_kinds(table.schema, "X")
    return table


def _describe(dtype: Any) -> RawColumn:
    return RawColumn(kind_of(dtype) or "word", of="truth" if str(dtype) == "bool" else None)


def _has_missing(column: Any) -> bool:
    return bool(column.null_count or np.isnan(numbers(column, np.dtype(np.float64))).any())


def _selects_columns(model: Any) -> bool:
    from sklearn.compose import ColumnTransformer

    parts = model.get_params().values() if hasattr(model, "fit") and hasattr(model, "get_params") else ()
    return any(isinstance(part, ColumnTransformer) for part in (model, *parts))
