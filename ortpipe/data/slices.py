"""Parts of rows by the values of a column, for metrics of each."""

import itertools
from collections.abc import Sequence

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.errors import DataError, nearest

FEW = 12  # numbers that are parts of their own; more are parted at their quartiles
MOST = 30  # parts; the rest of them is one


def columns_of(rows: Rows) -> list[str]:
    """Return the names of the columns that rows have, as their table has them."""
    found = [name for name, array in rows.inputs.items() if name in rows.kept or (array.ndim == 1 and len(array))]
    for name, columns in rows.columns.items():
        if name in rows.inputs:
            for column in columns:
                found.append(owner_of(rows, column))
    return list(dict.fromkeys(found))


def owner_of(rows: Rows, column: str) -> str:
    """Return the column of the user's table that became a column of an input: sex, of sex=f."""
    return next((own for own in rows.categories if column.startswith(f"{own}=")), column)


def column_of(rows: Rows, name: str, key: str | None = None) -> np.ndarray:
    """Return a column's values [N]: numbers, or text; `key` is the setting that names it."""
    if name in columns_of(rows):
        if name in rows.inputs:
            array = rows.inputs[name]
            return array.astype(str) if array.dtype.kind in "OSU" else array
        values = np.array([str(value) for value in rows.categories.get(name, ())])
        for given, columns in rows.columns.items():
            places = [i for i, column in enumerate(columns) if column.startswith(f"{name}=")]
            if places and name in rows.categories:
                return values[rows.inputs[given][:, places].argmax(axis=1)]
            if name in columns:
                array = rows.inputs[given][:, columns.index(name)]
                return array if not len(values) else values[array.astype(np.int64)]
    rule = "Metrics are parted by columns that the rows have, by name."
    raise DataError(rule, key=key, got=repr(name), fix=nearest(name, columns_of(rows)))


def slice_by_value(values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return each part's name and which rows are in it: by value, of many numbers by quartile, "" for missing ones.

    >>> [(name, where.tolist()) for name, where in slice_by_value(np.array(["b", "a", "b"]))]
    [('a', [False, True, False]), ('b', [True, False, True])]
    >>> [name for name, _ in slice_by_value(np.arange(101.0))]
    ['to 25', '25 to 50', '50 to 75', 'from 75']
    """
    if values.dtype.kind == "f" and (gaps := np.isnan(values)).any():
        rest = slice_by_value(values[~gaps])
        return [("", gaps), *((name, _spread(where, ~gaps)) for name, where in rest)]
    distinct, counts = np.unique(values, return_counts=True)
    if values.dtype.kind in "iuf" and len(distinct) > FEW:
        edges = np.unique(np.quantile(values, [0.25, 0.5, 0.75]))
        place = np.searchsorted(edges, values, side="right")
        names = [f"{edge:.4g}" for edge in edges]
        between = [f"{low} to {high}" for low, high in itertools.pairwise(names)]
        called = [f"to {names[0]}", *between, f"from {names[-1]}"]
        return [(name, place == i) for i, name in enumerate(called) if (place == i).any()]
    shown = distinct[np.sort(np.argsort(-counts, kind="stable")[:MOST])]
    found = [(_named(value), values == value) for value in shown]
    others = ~np.isin(values, shown)
    return [*found, ("others", others)] if others.any() else found


def _named(value: object) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


def _spread(where: np.ndarray, known: np.ndarray) -> np.ndarray:
    whole = np.zeros(len(known), bool)
    whole[known] = where
    return whole


def check_columns(rows: Rows, names: Sequence[str], key: str) -> None:
    """Refuse names of columns that rows do not have."""
    for name in names:
        column_of(rows, name, key)
