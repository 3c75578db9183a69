"""Faults of rows: data that have changed, and cells of all columns, at most ten of each kind, and how many more."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

from ortpipe.data.groups import Position
from ortpipe.errors import DataError

SHOWN = 10  # cells of a fault

Cell = tuple[str, Position, int]  # a value as text, and its row; a position is costly to compute and seldom shown


class DataErrors(DataError):
    """Several errors of the same rows."""

    errors: Sequence[DataError] = ()

    @property
    def key(self) -> str | None:
        """The setting of the first error."""
        return self.errors[0].key if self.errors else super().key

    def under(self, *path: str) -> Self:
        """Prepend a path to the keys of all errors."""
        for error in self.errors:
            error.under(*path)
        return super().under(*path)

    def said_in(self, words: Mapping[str, str]) -> Self:
        """Name settings and arguments in all errors by a caller's words."""
        for error in self.errors:
            error.said_in(words)
        return super().said_in(words)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


class Faults:
    """Wrong cells of columns, collected in pieces."""

    def __init__(self) -> None:
        self._cells = dict[tuple[str, str, str], list[Cell]]()  # (rule, column, fix) → the first cells, values as shown
        self._counts = Counter[tuple[str, str, str]]()

    def add(self, rule: str, column: str, cells: Sequence[Cell], count: int, fix: str) -> None:
        """Add the first wrong cells of a piece of a column, of which there are `count`."""
        kind = rule, column, fix
        shown = self._cells.setdefault(kind, [])
        shown += cells[: SHOWN - len(shown)]
        self._counts[kind] += count

    @property
    def found(self) -> bool:
        """Whether there are any."""
        return bool(self._cells)

    def errors(self) -> list[DataError]:
        """Return an error for each rule and column."""
        return [self._error(*kind) for kind in self._cells]

    def _error(self, rule: str, column: str, fix: str) -> DataError:
        cells, count = self._cells[rule, column, fix], self._counts[rule, column, fix]
        [(value, position, row)] = cells[:1]
        first = f"{value} in column {column!r}, {position(row)}"
        others = [f"{value} in {position(row)}" for value, position, row in cells[1:]]
        return DataError(rule, got=", ".join([first, *others]) + more(count - len(cells)), fix=fix)


def more(count: int) -> str:
    """Return how many are left out, for the end of a list."""
    return f", and {count:,} more" if count > 0 else ""


def listed(faults: Sequence[str], separator: str = "; ") -> str:
    """Return the first faults, and how many more there are."""
    return separator.join(faults[:SHOWN]) + more(len(faults) - SHOWN)


def raise_all(errors: Sequence[DataError]) -> None:
    """Raise the errors as one, or do nothing if there are none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        together = DataErrors(str(errors[0]))
        together.errors = tuple(errors)
        raise together


def format_cells(cells: Sequence[Cell], count: int) -> str:
    """Return the first cells with their positions, and how many of `count` are left out."""
    shown = [f"{value!r} in {position(row)}" for value, position, row in cells[:SHOWN]]
    return ", ".join(shown) + more(count - len(shown))


def changed_error(actual: str) -> DataError:
    """Return the error about data that have changed."""
    fix = "Start again, and do not change the files during the run."
    return DataError("The data must not change after they were split.", got=actual, fix=fix)
