"""Rows that do not fit in memory: read again for every pass, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortpipe.data.parts import TRAIN, Draw
from ortpipe.data.pieces import concatenate, pieces_of
from ortpipe.data.prefetch import prefetch
from ortpipe.data.reader import KeyedReader, Reader, groups_with, labels_with_parts, part_size, rows_with_parts
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows
from ortpipe.data.spill import PartSpill, Spill
from ortpipe.errors import ConfigError
from ortpipe.hashing import digest_of
from ortpipe.settings import Config, Count

MIB = 2**20
LIMIT = 256 * MIB  # bytes of rows; larger data stream unless the user says otherwise
WINDOW = 64  # MiB of rows that are shuffled together
DISTINCT = 2**16  # distinct labels that are remembered
FIRST = 512  # leading rows that are kept in memory


class Labels:
    """Collects the distinct labels of rows."""

    def __init__(self) -> None:
        self.values: np.ndarray | None = np.zeros(0, np.int64)

    def update(self, label: np.ndarray) -> None:
        """Add more labels; floats are no classes."""
        if self.values is None or not len(label):
            return
        if label.ndim != 1 or label.dtype.kind == "f":
            self.values = None
            return
        new = np.unique(np.array(label.tolist()) if label.dtype == object else label)
        distinct = np.union1d(self.values, new) if len(self.values) else new
        self.values = distinct if len(distinct) <= DISTINCT else None


class Stream:
    """The rows of a reader in its order: all of them, or those of one part.

    Args:
        reader: reads all rows.
        window: how many rows are shuffled together, or held as a sample; None: all.
        part: the part as its place in `PARTS`, and the draw that splits the rows; None: all rows.
        head: the output whose labels `label` holds.
        spill: the temporary file from which parts and samples are read once they are written there.
        first_rows: the first rows, once they are requested; shared by views of the same rows.
    """

    on_disk: ClassVar[bool] = True

    def __init__(
        self,
        reader: Reader,
        window: int | None,
        part: tuple[int, Draw] | None = None,
        head: str = "",
        spill: PartSpill | None = None,
        first_rows: list[Rows] | None = None,
    ) -> None:
        self._reader, self._part, self._head, self.window, self.notes = reader, part, head, window, reader.notes
        self.counts, self.labels, self.row_bytes = reader.counts, reader.labels.get(head), reader.row_bytes
        self._spill, self._first_rows = spill, [] if first_rows is None else first_rows

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the stream without its temporary file, which each process writes for itself."""
        spill = None if self._part is None else PartSpill(self._reader, self._part[1], self.window)
        return Stream, (self._reader, self.window, self._part, self._head, spill)

    def __len__(self) -> int:
        if self._part is None:
            return int(self.counts.sum())
        part, draw = self._part
        return part_size(self.counts, draw, part)

    def digest(self) -> str:
        """Return the sha256 (hex) of the content, the part, and the window if it does not hold all rows."""
        part = None
        if self._part is not None:
            config = self._part[1].config
            drawn = f"{config.fractions} {config.stratify} {config.seed}" if any(config.fractions) else ""
            part = [self._part[0], drawn]
        order = [] if self.window is None or self.window >= len(self) else [self.window, self.counts.tolist()]
        return digest_of("stream", self._reader.digest, part, order)

    def select(self, part: int, draw: Draw) -> Stream:
        """Return the rows of one part, a place in `PARTS`; parts of the same draw share a temporary file."""
        if self._spill is None or not self._spill.has_draw(draw):
            self._spill = PartSpill(self._reader, draw, self.window)
        return Stream(self._reader, self.window, (part, draw), self._head, self._spill)

    def of(self, head: str) -> Stream:
        """Return the rows with the labels of a head; "" is the prediction."""
        return Stream(self._reader, self.window, self._part, head, self._spill, self._first_rows)

    def read(self, groups: Iterable[int] | None = None) -> Iterator[Rows]:
        """Yield the rows of these groups in this order (None: all groups in theirs), as the reader gives them."""
        spilled = (
            self._spilled_part(self._part[0]) if groups is None and self._part and self._part[0] != TRAIN else None
        )
        for piece in self._read(groups) if spilled is None else spilled.read():
            yield piece.of(self._head)

    def _read(self, groups: Iterable[int] | None) -> Iterator[Rows]:
        """Yield the rows with the labels of all heads, read from their groups."""
        if self._part is None:
            for pieces in self._reader.pieces(range(len(self.counts)) if groups is None else groups):
                yield from pieces
            return
        part, draw = self._part
        for piece, codes in rows_with_parts(self._reader, draw, self._groups(self._part, groups)):
            places = np.flatnonzero(codes == part)
            if len(places):
                yield piece.take(places).replace(part=None)

    def read_labels(self, groups: Iterable[int] | None = None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield only the labels of these groups, and the parts of their rows if the data name them."""
        if self._part is None:
            for group in range(len(self.counts)) if groups is None else groups:
                for labels, part_codes in self._reader.read_labels(group):
                    yield labels[self._head], part_codes
            return
        part, draw = self._part
        for label, codes in labels_with_parts(self._reader, draw, self._groups(self._part, groups), self._head):
            yield label[codes == part], None

    def _groups(self, part: tuple[int, Draw], groups: Iterable[int] | None) -> list[int]:
        """Return those of these groups (None: of all) that may hold rows of a part."""
        has_part = groups_with(self.counts, part[1], part[0])
        return [group for group in (range(len(has_part)) if groups is None else groups) if has_part[group]]

    def pieces(self, most: int | None = None) -> Iterator[Rows]:
        """Yield all rows in pieces of PIECE bytes, which a second thread prefetches; see `RowSet`."""
        return prefetch(pieces_of(self, most))

    def head(self, count: int) -> Rows:
        """Return the first `count` rows; up to FIRST of the rows read stay in memory."""
        if not self._first_rows or len(self._first_rows[0]) < min(count, len(self)):
            pieces, most = list[Rows](), max(count, FIRST)
            for piece in self._read(None):
                pieces.append(piece.take(slice(most - sum(map(len, pieces)))))
                if sum(map(len, pieces)) >= count:
                    break
            self._first_rows[:] = [concatenate(pieces)]
        return self._first_rows[0].take(slice(count)).of(self._head)

    def sample(self) -> Rows:
        """Return rows that fit in memory: all of them, or as many as the window, evenly spaced."""
        if self._part is not None and self._part[0] == TRAIN and (spilled := self._spilled_part(TRAIN)) is not None:
            return concatenate(list(spilled.read())).of(self._head)
        return concatenate(list(pieces_of(self, self.window)))

    def _spilled_part(self, part: int) -> Spill | None:
        return None if self._spill is None else self._spill.part(part)

    def with_parts(self, key: str, parts: np.ndarray, note: str) -> Stream:
        """Return the rows with these parts, int8 [N], and without the column that chose them."""
        return Stream(KeyedReader(self._reader, key, parts, note), self.window)

    def spill_notes(self) -> tuple[str, ...]:
        """Return the notes about the temporary file of parts."""
        return () if self._spill is None else self._spill.notes

    def rows(self) -> Rows:
        """Return all rows, in memory."""
        sizes = () if self.window is None else tuple(self.counts.sum(axis=1).tolist())
        return concatenate(list(self.read())).replace(notes=self.notes, window=self.window, group_sizes=sizes)


@dataclass(frozen=True, kw_only=True)
class Windowed(Config):
    """How the rows of files are read and shuffled.

    Attributes:
        stream: read rows from disk again for every epoch; null: if they take more than 256 MiB.
        window: MiB of rows that are shuffled together, streamed or not; null: all rows, which are then never streamed.
    """

    stream: bool | None = None
    window: Count | None = WINDOW

    def __post_init__(self) -> None:
        if self.stream and self.window is None:
            rule, actual = "Streamed rows need a shuffle window.", "stream=true and window=null"
            raise ConfigError(rule, key="window", got=actual, fix=f"Set {{key}}={WINDOW} (MiB), or {{at}}stream=false.")

    def rows_of(self, reader: Reader) -> RowSet:
        """Return the rows of a reader: streamed or in memory as the user chose, else by their size."""
        rows = Stream(reader, self.window and max(1, int(self.window * MIB) // reader.row_bytes))
        large = self.window is not None and len(rows) * reader.row_bytes > LIMIT
        return rows if (large if self.stream is None else self.stream) else rows.rows()
