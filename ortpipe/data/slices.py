"""Slices of rows by the values of a column, for metrics of each slice."""

import itertools
from collections.abc import Sequence

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.errors import DataError, nearest

MOST_NUMBERS = 12  # distinct numbers that get a slice each; more are divided at their quartiles
MOST_VALUES = 30  # slices of the most frequent values; all other values are one slice


def columns_of(rows: Rows) -> list[str]:
    """Return the column names of the rows, as in their table."""
    names = [name for name, array in rows.inputs.items() if name in rows.kept or (array.ndim == 1 and len(array))]
    names += [column for name, columns in rows.columns.items() if name in rows.inputs for column in columns]
    return list(dict.fromkeys(names))


def column_of(rows: Rows, name: str, key: str | None = None) -> np.ndarray:
    """Return a column's values [N]: numbers, or text; `key` is the setting that names it."""
    if name in columns_of(rows):
        if name in rows.inputs:
            array = rows.inputs[name]
            return array.astype(str) if array.dtype.kind in "OSU" else array
        for input_name, columns in rows.columns.items():
            if name in columns:
                return np.asarray(rows.inputs[input_name][:, columns.index(name)])
    rule = "Metrics by slice need the name of a column of the rows."
    raise DataError(rule, key=key, got=repr(name), fix=nearest(name, columns_of(rows)))


def slice_by_value(values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return each slice's name and its rows: one per value, of many numbers one per quartile, "" for missing ones.

    >>> [(name, where.tolist()) for name, where in slice_by_value(np.array(["b", "a", "b"]))]
    [('a', [False, True, False]), ('b', [True, False, True])]
    >>> [name for name, _ in slice_by_value(np.arange(101.0))]
    ['to 25', '25 to 50', '50 to 75', 'from 75']
    """
    if values.dtype.kind == "f" and (gaps := np.isnan(values)).any():
        slices = slice_by_value(values[~gaps])
        return [("", gaps), *((name, _scatter(where, ~gaps)) for name, where in slices)]
    distinct, counts = np.unique(values, return_counts=True)
    if values.dtype.kind in "iuf" and len(distinct) > MOST_NUMBERS:
        edges = np.unique(np.quantile(values, [0.25, 0.5, 0.75]))
        place = np.searchsorted(edges, values, side="right")
        names = [f"{edge:.4g}" for edge in edges]
        between = [f"{low} to {high}" for low, high in itertools.pairwise(names)]
        ranges = [f"to {names[0]}", *between, f"from {names[-1]}"]
        return [(name, place == i) for i, name in enumerate(ranges) if (place == i).any()]
    frequent = distinct[np.sort(np.argsort(-counts, kind="stable")[:MOST_VALUES])]
    slices = [(_format_value(value), values == value) for value in frequent]
    infrequent = ~np.isin(values, frequent)
    return [*slices, ("others", infrequent)] if infrequent.any() else slices


def _format_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


def _scatter(where: np.ndarray, present: np.ndarray) -> np.ndarray:
    mask = np.zeros(len(present), bool)
    mask[present] = where
    return mask


def check_columns(rows: Rows, names: Sequence[str], key: str) -> None:
    """Reject names of columns that the rows do not have."""
    for name in names:
        column_of(rows, name, key)
