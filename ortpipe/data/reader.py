"""Where the rows of a stream are, and in which part each of them is."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from ortpipe.data.draw import TRAIN, Draw
from ortpipe.data.rows import Rows

Labelled = tuple[dict[str, np.ndarray], np.ndarray | None]  # the label of each head, and what data say of the part


class Reader(Protocol):
    """Groups of rows that can be read in any order, any number of times; see `RowSet`."""

    counts: np.ndarray
    labels: dict[str, np.ndarray | None]  # of the prediction, "", and of each head
    row_bytes: int
    notes: tuple[str, ...]
    digest: str  # sha256 (hex) of the content

    def pieces(self, group: int) -> Iterator[Rows]:
        """Yield the rows of a group in pieces; each says which part its rows are in, unless all are to train on."""

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield the labels of a group's rows, and which part each is in, in pieces; nothing else is read."""


def groups_with(counts: np.ndarray, draw: Draw, part: int) -> np.ndarray:
    """Return which groups may hold rows of a part, bool [groups]: those that say so, or that it is drawn from."""
    drawn = part != TRAIN and draw.counts[part] > 0
    return (counts[:, part] > 0) | (drawn & (counts[:, TRAIN] > 0))


def rows_with_parts(reader: Reader, draw: Draw, groups: Iterable[int]) -> Iterator[tuple[Rows, np.ndarray]]:
    """Yield the rows of these groups in pieces, with the part of each row, int8 [N]."""
    for group in groups:
        seen = draw.before[group].copy()
        for piece in reader.pieces(group):
            yield piece, draw.parts(piece.label, piece.part, seen)
        draw.check_group(group, seen)


def labels_with_parts(
    reader: Reader, draw: Draw, groups: Sequence[int], head: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the labels of a head alone, likewise."""
    for group in groups:
        seen = draw.before[group].copy()
        for labels, said in reader.read_labels(group):
            yield labels[head], draw.parts(labels[""], said, seen)
        draw.check_group(group, seen)
