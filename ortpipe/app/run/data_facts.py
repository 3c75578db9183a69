"""The facts about a run's rows that its record holds."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortpipe import Data
from ortpipe.data import PARTS

MOST_COLUMNS = 1000  # columns that are listed


def data_facts(data: Data) -> dict[str, Any]:
    """Return the `digest` of all rows and `digests` of the parts, their `rows`, and the `columns` and `label`.

    A column has the kind of its NumPy dtype (f, i, U …), the shape of a row's entry ([] is one value), and the number
    of missing values if there are any.
    """
    parts = dict(zip(PARTS, (data.train, data.validation, data.test), strict=True))
    first = data.train.head(1)
    columns: dict[str, Any] = {}
    for name, array in first.inputs.items():
        column_names = first.columns.get(name, ()) if array.ndim == 2 else ()
        columns |= {column: _entry(array[:, 0]) for column in column_names} if column_names else {name: _entry(array)}
        if name in first.kept and first.kept[name].missing:
            columns[name]["missing"] = first.kept[name].missing
    return {
        "digest": data.digest(),
        "digests": {name: digest for name, digest in zip(PARTS, data.digests, strict=True) if digest is not None},
        "rows": {name: len(part) for name, part in parts.items() if part is not None},
        "columns": dict(list(columns.items())[:MOST_COLUMNS]),
        "label": {name or "label": _entry(array) for name, array in {"": first.label, **first.heads}.items()},
    }


def in_words(facts: Mapping[str, Any]) -> str:
    """Return the numbers of rows, and of values per row, in words.

    >>> in_words({"rows": {"train": 1168, "test": 449}, "columns": {"a": {"shape": []}, "b": {"shape": [2, 3]}}})
    '1,168 rows to train, 449 to test; 7 values each'
    """
    verbs = {"train": "rows to train", "validation": "to validate", "test": "to test"}
    rows = ", ".join(f"{count:,} {verbs[name]}" for name, count in facts["rows"].items())
    if len(facts["columns"]) == MOST_COLUMNS:  # there may be more
        return rows
    count = sum(math.prod(column["shape"]) for column in facts["columns"].values())
    return f"{rows}; {count:,} value{'s' * (count != 1)} each"


def _entry(array: np.ndarray) -> dict[str, Any]:
    return {"type": array.dtype.kind, "shape": list(array.shape[1:])}
