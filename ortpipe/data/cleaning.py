"""Rows and columns that training should not see: rows without a label, identifiers, copies of the label or of rows."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.arrow import as_numpy, distinct, is_text, matches, places, plain_column
from ortpipe.data.groups import PIECE, PROBED, Group
from ortpipe.data.raw_columns import ISO
from ortpipe.data.rows import Data, Rows

if TYPE_CHECKING:
    import pyarrow as pa

FEWEST = 20  # rows, below which values may be distinct, or equal to the label, by chance
# names of whole numbers that identify rows: customer_id, CustomerID, Id, index, Unnamed: 0 and "" (of pandas)
NAME = re.compile(
    r"(?i:|id|ids|uuid|guid|index|idx|row|rows|rownames|row[ _.]?(number|num|no|id)|unnamed: 0)"
    r"|.*[a-z]I[dD]|.*[ _.-](?i:id|uuid|guid)"
)


def names_id(column: str) -> bool:
    """Return whether a column has the name of an identifier.

    >>> [names_id(column) for column in ("id", "storeId", "customer_id", "Unnamed: 0", "idea", "paid")]
    [True, True, True, True, False, False]
    """
    return NAME.fullmatch(column) is not None


def identifying_columns(schemas: Mapping[str, pa.Schema], groups: Sequence[Group], columns: Iterable[str]) -> list[str]:
    """Return which columns identify rows.

    These are text, or whole numbers with the name of an identifier, with a value in every row that no other row has.
    """
    candidates = [name for name in columns if all(_may_identify(schema.field(name)) for schema in schemas.values())]
    candidates, _ = _unique(groups, candidates, PROBED)
    names, count = _unique(groups, candidates, PIECE)
    return names if count >= FEWEST else []


def _may_identify(field: pa.Field) -> bool:
    return is_text(field.type) or (str(field.type).startswith(("int", "uint")) and names_id(field.name))


def _unique(groups: Sequence[Group], names: Sequence[str], most: int) -> tuple[list[str], int]:
    """Return which columns have no value twice in the first `most` rows, and the number of these rows."""
    seen: dict[str, set[int]] = {name: set() for name in names}
    count = 0
    for group in groups:
        for batch in group.read(list(seen), most) if seen else ():
            count += len(batch)
            seen = {name: values for name, values in seen.items() if _adds(values, batch.column(name))}
            if not seen or count >= most:
                return list(seen), count
    return list(seen), count


def _adds(values: set[int], column: pa.Array) -> bool:
    """Add a piece of a column to the hashes of its values; return whether each is new, and they are no dates."""
    words, indices = distinct(plain_column(column, coded=True))
    are_dates = is_text(words.type) and len(words) > 0 and bool(matches(words, f"^{ISO}$").all())
    if len(words) < len(column) or indices.null_count or are_dates:
        return False
    before = len(values)
    values.update(map(hash, words.to_pylist()))
    return len(values) == before + len(words)


def labeled_rows(groups: Sequence[Group], labels: Sequence[str], missing: Sequence[str]) -> tuple[list[Group], int]:
    """Return the groups without the rows that lack one of their labels, and the number of these rows."""
    labeled, left_out = list[Group](), 0
    for group in groups:
        count = sum(int((~_have_labels(batch, labels, missing)).sum()) for batch in group.read(list(labels), PIECE))
        labeled.append(_labeled(group, labels, missing) if count else group)
        left_out += count
    return labeled, left_out


def _have_labels(batch: pa.RecordBatch, labels: Sequence[str], missing: Sequence[str]) -> np.ndarray:
    """Return which rows have all labels: no null, nan, empty text or mark of a missing value."""
    complete = np.ones(len(batch), bool)
    for name in labels:
        column = plain_column(batch.column(name))
        if is_text(column.type):
            complete &= places(column, [None, "", *missing]) < 0
        elif str(column.type) in ("halffloat", "float", "double"):
            complete &= ~np.isnan(as_numpy(column))
        else:
            complete &= column.is_valid().to_numpy(zero_copy_only=False)
    return complete


def _labeled(group: Group, labels: Sequence[str], missing: Sequence[str]) -> Group:
    def read(columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        for batch in group.read(list(dict.fromkeys([*columns, *labels])), most):
            rows = np.flatnonzero(_have_labels(batch, labels, missing))
            if len(rows):
                yield batch.take(rows).select(columns)

    @functools.cache  # called for few rows, to show them
    def places_of_rows() -> np.ndarray:
        batches = group.read(list(labels), PIECE)
        return np.flatnonzero(np.concatenate([_have_labels(batch, labels, missing) for batch in batches]))

    return dataclasses.replace(group, read=read, position=lambda row: group.position(int(places_of_rows()[row])))


class CopyOfLabel:
    """Finds columns that equal the label in every row, in pieces of the table."""

    def __init__(self, label: str, columns: Iterable[str]) -> None:
        self._label, self._columns, self._rows = label, list(columns), 0

    def update(self, table: pa.RecordBatch) -> None:
        """Add a piece of the table."""
        label = plain_column(table.column(self._label)) if self._columns else None
        self._rows += len(table)
        self._columns = [name for name in self._columns if plain_column(table.column(name)).equals(label)]

    @property
    def notes(self) -> list[str]:
        """A warning for each of these columns."""
        return [
            f"warning: column {name!r} equals the label {self._label!r} in every row; "
            "if it is not known before the label, leave it out (data.source.exclude)"
            for name in (self._columns if self._rows >= FEWEST else ())
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
