"""Groups of a table's rows: a file, a part of it, or a table in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ortpipe.data.position import Position, by_row

PROBED, PIECE = 300, 2**17  # rows that choose candidates among columns, and rows that are read at a time


@dataclass(frozen=True)
class Group:
    """Rows of a table that are read together, in pieces."""

    file: str  # its name in messages
    part: int | None  # of all its rows, as a place in `PARTS`; None if files do not define parts
    read: Callable[[list[str], int], Iterator[Any]]  # (columns, most) → record batches of at most `most` rows
    position: Position  # of its rows, in messages
    follows: bool = False  # it continues the group before: the digest must not depend on the cuts


def group_of(table: Any, name: str, part: int | None = None, position: Position | None = None) -> Group:
    """Return an Arrow table as a group."""
    read = lambda columns, most: iter(table.select(columns).to_batches(most))  # noqa: E731
    return Group(name, part, read, position or by_row(name))
