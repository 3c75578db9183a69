"""Columns that identify rows: ids, row numbers, and text that never repeats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from ortpipe.data.arrow import distinct, is_text, matches, plain_column
from ortpipe.data.groups import PIECE, PROBED, Group
from ortpipe.data.raw_columns import ISO

FEWEST = 20  # rows, below which values may be distinct by chance
MOST = PIECE  # rows that are compared
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
    candidates = [name for name in columns if all(_is_possible(schema.field(name)) for schema in schemas.values())]
    candidates, _ = _unique(groups, candidates, PROBED)
    names, count = _unique(groups, candidates, MOST)
    return names if count >= FEWEST else []


def _unique(groups: Sequence[Group], names: Sequence[str], most: int) -> tuple[list[str], int]:
    """Return which columns have no value twice in the first `most` rows, and the number of these rows."""
    seen: dict[str, set[int]] = {name: set() for name in names}
    count = 0
    for group in groups:
        for batch in group.read(list(seen), min(most, PIECE)) if seen else ():
            count += len(batch)
            seen = {name: values for name, values in seen.items() if _adds(values, batch.column(name))}
            if not seen or count >= most:
                return list(seen), count
    return list(seen), count


def _is_possible(field: pa.Field) -> bool:
    return is_text(field.type) or (pa.types.is_integer(field.type) and names_id(field.name))


def _are_dates(words: pa.Array) -> bool:
    return is_text(words.type) and len(words) > 0 and bool(matches(words, f"^{ISO}$").all())


def _adds(values: set[int], column: pa.Array) -> bool:
    """Add a piece of a column to the hashes of its values; return whether each is new."""
    words, indices = distinct(plain_column(column, coded=True))
    if len(words) < len(column) or indices.null_count or _are_dates(words):
        return False
    before = len(values)
    values.update(map(hash, words.to_pylist()))
    return len(values) == before + len(words)
