"""Reading the rows of a stream group by group, and the part of each row."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from ortpipe.data.draw import TRAIN, Draw
from ortpipe.data.rows import Rows

Labelled = tuple[
    dict[str, np.ndarray], np.ndarray | None
]  # the labels of each head, and the parts if the data name them


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


def groups_with(counts: np.ndarray, draw: Draw, part: int) -> np.ndarray:
    """Return which groups may hold rows of a part, bool [groups]: assigned by the data, or drawn at random."""
    drawn = part != TRAIN and draw.counts[part] > 0
    return (counts[:, part] > 0) | (drawn & (counts[:, TRAIN] > 0))


def rows_with_parts(reader: Reader, draw: Draw, groups: Sequence[int]) -> Iterator[tuple[Rows, np.ndarray]]:
    """Yield the rows of these groups in pieces, with the part of each row, int8 [N]."""
    for group, pieces in zip(groups, reader.pieces(groups), strict=True):
        seen = draw.before[group].copy()
        for piece in pieces:
            yield piece, draw.parts(piece.label, piece.part, seen)
        draw.check_group(group, seen)


def labels_with_parts(
    reader: Reader, draw: Draw, groups: Sequence[int], head: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the labels of a head in pieces, with the part of each row, int8 [N]."""
    for group in groups:
        seen = draw.before[group].copy()
        for labels, assigned in reader.read_labels(group):
            yield labels[head], draw.parts(labels[""], assigned, seen)
        draw.check_group(group, seen)
