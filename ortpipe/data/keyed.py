"""Streamed rows whose parts follow from a column, which is no input."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ortpipe.data.config import PARTS
from ortpipe.data.reader import Labelled, Reader
from ortpipe.data.rows import Rows
from ortpipe.hashing import digest_of


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
