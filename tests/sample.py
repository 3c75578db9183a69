"""Samples of large tables of cases. CI tests a part; `ORTPIPE_TESTS=all pytest tests/FILE` tests every case.

Take a sample where single cases prove nearly the same thing. Each row and each column of the table stays in it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")
Row = TypeVar("Row")
Column = TypeVar("Column")
ALL = os.environ.get("ORTPIPE_TESTS") == "all"


def pairs(rows: Sequence[Row], columns: Sequence[Column], every: int) -> list[tuple[Row, Column]]:
    """Return one in `every` pairs: each row with some columns, the next row with the columns after those."""
    kept = 1 if ALL else every
    return [(row, column) for i, row in enumerate(rows) for j, column in enumerate(columns) if (i + j) % kept == 0]


def few_of_each(cases: Iterable[tuple[Hashable, Case]], count: int) -> list[Case]:
    """Return a few cases of each kind: the first, the last and those at equal distances between them."""
    kinds: dict[Hashable, list[Case]] = {}
    for kind, case in cases:
        kinds.setdefault(kind, []).append(case)
    return [case for found in kinds.values() for case in _spread(found, len(found) if ALL else count)]


def _spread(found: list[Case], count: int) -> list[Case]:
    last, steps = len(found) - 1, max(1, count - 1)
    return [found[place] for place in sorted({last * step // steps for step in range(count)})]
