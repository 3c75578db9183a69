"""Pieces of rows: cut from a stream, and joined."""

from collections.abc import Iterator, Sequence

import numpy as np

from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import PIECE, Rows


def pieces_of(rows: RowSet, most: int | None = None) -> Iterator[Rows]:
    """Yield the rows of a stream in pieces of PIECE bytes: see `RowSet.pieces`."""
    step = 1 if most is None else max(1, -(-len(rows) // most))
    size = max(1, PIECE // rows.row_bytes)
    pieces: list[Rows] = []
    count = seen = 0
    for read in rows.read():
        spaced = read if step == 1 else read.take(np.arange(-seen % step, len(read), step))
        seen, first = seen + len(read), 0
        while first < len(spaced):
            pieces.append(spaced.take(slice(first, first + size - count)))
            first, count = first + len(pieces[-1]), count + len(pieces[-1])
            if count == size:
                yield concatenate(pieces)
                pieces, count = [], 0
    if pieces:
        yield concatenate(pieces)


def concatenate(pieces: Sequence[Rows]) -> Rows:
    """Concatenate pieces of the same source."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    weights = [piece.sample_weight for piece in pieces if piece.sample_weight is not None]
    parts = [piece.part for piece in pieces if piece.part is not None]
    return first.replace(
        inputs={name: np.concatenate([piece.inputs[name] for piece in pieces]) for name in first.inputs},
        label=np.concatenate([piece.label for piece in pieces]),
        sample_weight=np.concatenate(weights) if weights else None,
        heads={name: np.concatenate([piece.heads[name] for piece in pieces]) for name in first.heads},
        part=np.concatenate(parts) if parts else None,
    )
