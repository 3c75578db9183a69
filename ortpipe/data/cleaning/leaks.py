"""Warnings of columns that repeat the label, and of held-out rows that repeat training rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ortpipe.data.arrow import plain_column
from ortpipe.data.rows import Data, Rows

FEWEST = 20  # rows, below which a column may equal the label by chance


class CopyOfLabel:
    """Finds columns that equal the label in every row, in pieces of the table."""

    def __init__(self, label: str, columns: Iterable[str]) -> None:
        self._label, self._columns, self._rows = label, list(columns), 0

    def update(self, table: Any) -> None:
        """Add a piece of the table, a record batch."""
        label = plain_column(table.column(self._label)) if self._columns else None
        self._rows += len(table)
        self._columns = [name for name in self._columns if plain_column(table.column(name)).equals(label)]

    @property
    def notes(self) -> list[str]:
        """A warning for each of these columns."""
        if self._rows < FEWEST:
            return []
        return [
            f"warning: column {name!r} equals the label {self._label!r} in every row; "
            "if it is not known before the label, leave it out (data.source.exclude)"
            for name in self._columns
        ]


def repeated_rows_note(data: Data) -> list[str]:
    """Return a warning of held-out rows whose inputs are those of a training row; only of rows in memory."""
    parts = {"validation": data.validation, "test": data.test}
    in_memory = {name: part for name, part in parts.items() if isinstance(part, Rows) and len(part)}
    if not isinstance(data.train, Rows) or not data.train.kept or not in_memory:
        return []
    known_rows = _hashes(data.train)
    counts = {name: int(np.isin(_hashes(part), known_rows).sum()) for name, part in in_memory.items()}
    texts = [f"{count:,} of {len(in_memory[name]):,} {name} rows" for name, count in counts.items() if count]
    return [f"warning: {' and '.join(texts)} have the inputs of a training row"] if texts else []


def _hashes(rows: Rows) -> np.ndarray:
    """Return a hash of the inputs of each row, int64 [N]; equal within one process."""
    total = np.zeros(len(rows), np.int64)
    for array in rows.inputs.values():
        if array.dtype.kind in "OSU":
            words = array.reshape(len(array), -1)
            values = np.array([list(map(hash, row)) for row in words.tolist()], np.int64)
        else:
            values = np.ascontiguousarray(array.reshape(len(array), -1), np.float64).view(np.int64)
        for column in values.T:
            total = (total ^ column) * np.int64(0x5851F42D4C957F2D) + (total >> np.int64(29))
    return total
