"""Reading the rows of a stream group by group, and the part of each row: by a draw, or by a column."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ortpipe.data.faults import changed_error
from ortpipe.data.groups import Position
from ortpipe.data.parts import PARTS, TRAIN, Draw
from ortpipe.data.rows import Rows
from ortpipe.errors import DataError, nearest
from ortpipe.hashing import digest_of

# the labels of each head, and the parts if the data name them
Labelled = tuple[dict[str, np.ndarray], np.ndarray | None]


PART_RULE = "split.column may hold only train, validation and test."


class Reader(Protocol):
    """Reads groups of rows in any order, any number of times; see `RowSet`."""

    counts: np.ndarray
    labels: dict[str, np.ndarray | None]  # of the prediction, "", and of each head
    row_bytes: int
    notes: tuple[str, ...]
    digest: str  # sha256 (hex) of the content

    def pieces(self, groups: Iterable[int]) -> Iterator[Iterator[Rows]]:
        """Yield the rows of each group, in pieces, with the parts of the rows if the data name them.

        A group's pieces are read before the next group's.
        """

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield the labels and parts of a group's rows in pieces, without reading anything else."""


def part_size(counts: np.ndarray, draw: Draw, part: int) -> int:
    """Return the number of rows of a part: drawn at random, and assigned by the data."""
    rows, held_out, tested = (sum(column) for column in zip(*draw.quotas, strict=True))
    drawn = (rows - held_out, held_out - tested, tested)[part]
    return drawn if part == TRAIN else drawn + int(counts[:, part].sum())


def groups_with(counts: np.ndarray, draw: Draw, part: int) -> np.ndarray:
    """Return which groups may hold rows of a part, bool [groups]: assigned by the data, or drawn at random."""
    drawn = part != TRAIN and part_size(counts[:0], draw, part) > 0
    return (counts[:, part] > 0) | (drawn & (counts[:, TRAIN] > 0))


def rows_with_parts(reader: Reader, draw: Draw, groups: Sequence[int]) -> Iterator[tuple[Rows, np.ndarray]]:
    """Yield the rows of these groups in pieces, with the part of each row, int8 [N]."""
    for group, pieces in zip(groups, reader.pieces(groups), strict=True):
        seen = draw.before[group].copy()
        for piece in pieces:
            yield piece, draw.parts(piece.label, piece.part, seen)
        _check_group(draw, group, seen)


def labels_with_parts(
    reader: Reader, draw: Draw, groups: Sequence[int], head: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the labels of a head in pieces, with the part of each row, int8 [N]."""
    for group in groups:
        seen = draw.before[group].copy()
        for labels, assigned in reader.read_labels(group):
            yield labels[head], draw.parts(labels[""], assigned, seen)
        _check_group(draw, group, seen)


def _check_group(draw: Draw, group: int, seen: np.ndarray) -> None:
    """Raise if a group, read to its end, has other numbers of rows or of classes than when it was counted."""
    if any(draw.config.fractions) and (seen != draw.before[group + 1]).any():
        raise changed_error(f"another number of rows, or other labels, in group {group + 1}")


def check_parts(codes: np.ndarray, words: Any, column: str, position: Position) -> None:
    """Reject a split column that holds another word than a part's name (code -1)."""
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        [word] = words[row : row + 1].tolist()
        fix = nearest(str(word), PARTS)
        raise DataError(PART_RULE, got=f"{word!r} in column {column!r}, {position(row)}", fix=fix)


class KeyedReader:
    """Reads the rows of another reader with these parts and without the column `key`; see `Reader`.

    Args:
        reader: reads the rows.
        key: the column that chose the parts.
        parts: each row's part as its place in `PARTS`, int8 [N].
        note: the note about the split.
    """

    def __init__(self, reader: Reader, key: str, parts: np.ndarray, note: str) -> None:
        self._reader, self._key, self._parts = reader, key, parts
        self._first = np.concatenate([[0], np.cumsum(reader.counts.sum(axis=1))]).tolist()
        groups = np.split(parts, self._first[1:-1])
        self.counts = np.stack([np.bincount(group, minlength=len(PARTS)) for group in groups])
        self.labels, self.row_bytes, self.notes = reader.labels, reader.row_bytes, (*reader.notes, note)
        self.digest = digest_of("keyed", reader.digest, key, parts)

    def pieces(self, groups: Iterable[int]) -> Iterator[Iterator[Rows]]:
        """Yield the rows of each group in pieces."""
        chosen = list(groups)
        for group, pieces in zip(chosen, self._reader.pieces(chosen), strict=True):
            yield self._with_parts(self._first[group], pieces)

    def _with_parts(self, first: int, pieces: Iterator[Rows]) -> Iterator[Rows]:
        for piece in pieces:
            part = self._parts[first : first + len(piece)]
            yield piece.replace(inputs=self._others(piece.inputs), kept=self._others(piece.kept), part=part)
            first += len(piece)

    def _others(self, columns: Any) -> dict[str, Any]:
        return {name: value for name, value in columns.items() if name != self._key}

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield a group's labels and parts in pieces."""
        first = self._first[group]
        for labels, _ in self._reader.read_labels(group):
            count = len(labels[""])
            yield labels, self._parts[first : first + count]
            first += count
