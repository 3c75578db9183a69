"""Rows that do not fit in memory: read anew for every pass, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ortpipe.data.draw import TRAIN, Draw
from ortpipe.data.part_spill import PartSpill
from ortpipe.data.prefetch import prefetch
from ortpipe.data.reader import Reader, groups_with, labels_with_parts, rows_with_parts
from ortpipe.data.rows import Rows, RowSet, concatenate
from ortpipe.data.spill import Spill
from ortpipe.errors import ConfigError
from ortpipe.hashing import digest_of
from ortpipe.settings import Config, Count

MIB = 2**20
LIMIT = 256 * MIB  # bytes of rows, beyond which they are not held in memory unless the user says so
WINDOW = 64  # MiB of rows that are shuffled together
DISTINCT = 2**16  # labels that are remembered
FIRST = 512  # rows that are kept of the first ones


class Labels:
    """The distinct labels of what it has seen."""

    def __init__(self) -> None:
        self.values: np.ndarray | None = np.zeros(0, np.int64)

    def see(self, label: np.ndarray) -> None:
        """Take more labels; numbers with a fraction are no classes."""
        if self.values is None or not len(label):
            return
        if label.ndim != 1 or label.dtype.kind == "f":
            self.values = None
            return
        new = np.unique(np.array(label.tolist()) if label.dtype == object else label)
        both = np.union1d(self.values, new) if len(self.values) else new
        self.values = both if len(both) <= DISTINCT else None


class Stream(RowSet):
    """The rows of a reader in its order, or of one part: its place in `PARTS`, and the draw of those to train on.

    Args:
        reader: of all rows.
        window: how many rows are shuffled together, or held as a sample; None: all.
        part: the part, and the draw.
        head: the output whose label is the rows' own.
        aside: where parts and samples are read once they were laid there.
        first: the first rows that somebody asked for, kept here.
    """

    on_disk: ClassVar[bool] = True

    def __init__(
        self,
        reader: Reader,
        window: int | None,
        part: tuple[int, Draw] | None = None,
        head: str = "",
        aside: PartSpill | None = None,
        first: list[Rows] | None = None,
    ) -> None:
        self._reader, self._part, self._head, self.window, self.notes = reader, part, head, window, reader.notes
        self.counts, self.labels, self.row_bytes = reader.counts, reader.labels.get(head), reader.row_bytes
        self._aside, self._first = aside, [] if first is None else first

    def __len__(self) -> int:
        if self._part is None:
            return int(self.counts.sum())
        part, draw = self._part
        return int(self.counts[:, part].sum()) * (part != TRAIN) + draw.counts[part]

    def digest(self) -> str:
        """Return the sha256 (hex) of the content, of which rows these are, and of a window that does not hold all."""
        part = None if self._part is None else [self._part[0], self._part[1].key]
        order = [] if self.window is None or self.window >= len(self) else [self.window, self.counts.tolist()]
        return digest_of("stream", self._reader.digest, part, order)

    def select(self, part: int, draw: Draw) -> Stream:
        """Return the rows of one part, a place in `PARTS`; parts of the same draw lie aside together."""
        if self._aside is None or not self._aside.is_of(draw):
            self._aside = PartSpill(self._reader, draw, self.window)
        return Stream(self._reader, self.window, (part, draw), self._head, self._aside)

    def of(self, head: str) -> Stream:
        """Return the rows with the label of this further output as theirs; themselves of ""."""
        return Stream(self._reader, self.window, self._part, head, self._aside, self._first)

    def read(self, groups: Iterable[int] | None = None) -> Iterator[Rows]:
        """Yield the rows of these groups in this order (all, as they are), as the reader gives them."""
        laid = self._spilled_part(self._part[0]) if groups is None and self._part and self._part[0] != TRAIN else None
        for piece in self._read(groups) if laid is None else laid.read():
            yield piece.of(self._head)

    def _read(self, groups: Iterable[int] | None) -> Iterator[Rows]:
        """Yield the rows with the labels of all heads, from their groups."""
        if self._part is None:
            for group in range(len(self.counts)) if groups is None else groups:
                yield from self._reader.pieces(group)
            return
        part, draw = self._part
        held = groups_with(self.counts, draw, part)
        chosen = np.flatnonzero(held).tolist() if groups is None else [group for group in groups if held[group]]
        for piece, codes in rows_with_parts(self._reader, draw, chosen):
            places = np.flatnonzero(codes == part)
            if len(places):
                yield piece.take(places).replace(part=None)

    def read_labels(self, groups: Iterable[int] | None = None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield the labels of these groups alone, and the parts of their rows where the data say them."""
        if self._part is None:
            for group in range(len(self.counts)) if groups is None else groups:
                for labels, said in self._reader.read_labels(group):
                    yield labels[self._head], said
            return
        part, draw = self._part
        held = groups_with(self.counts, draw, part)
        chosen = np.flatnonzero(held).tolist() if groups is None else [group for group in groups if held[group]]
        for label, codes in labels_with_parts(self._reader, draw, chosen, self._head):
            yield label[codes == part], None

    def pieces(self, most: int | None = None) -> Iterator[Rows]:
        """Yield all rows in pieces of PIECE bytes, which a second thread reads ahead; see `RowSet`."""
        return prefetch(super().pieces(most))

    def head(self, count: int) -> Rows:
        """Return the first so many rows; what was read for it is kept for later, up to FIRST rows."""
        if not self._first or len(self._first[0]) < min(count, len(self)):
            held, most = list[Rows](), max(count, FIRST)
            for piece in self._read(None):
                held.append(piece.take(slice(most - sum(map(len, held)))))
                if sum(map(len, held)) >= count:
                    break
            self._first[:] = [concatenate(held)]
        return self._first[0].take(slice(count)).of(self._head)

    def sample(self) -> Rows:
        """Return rows that fit in memory: all of them, or as many as the window, evenly spaced."""
        if self._part is not None and self._part[0] == TRAIN and (laid := self._spilled_part(TRAIN)) is not None:
            return concatenate(list(laid.read())).of(self._head)
        return super().sample()

    def _spilled_part(self, part: int) -> Spill | None:
        return None if self._aside is None else self._aside.part(part)

    def spill_notes(self) -> tuple[str, ...]:
        """Return what is said of rows that are laid aside."""
        return () if self._aside is None else self._aside.notes

    def rows(self) -> Rows:
        """Return every row, in memory."""
        sizes = () if self.window is None else tuple(self.counts.sum(axis=1).tolist())
        return concatenate(list(self.read())).replace(notes=self.notes, window=self.window, group_sizes=sizes)


@dataclass(frozen=True, kw_only=True)
class Windowed(Config):
    """How the rows of files are read and shuffled.

    Attributes:
        stream: read rows anew for every epoch; null: where they take more than 256 MiB.
        window: MiB of rows that are shuffled together, whether they stream or not; null: all, which never stream.
    """

    stream: bool | None = None
    window: Count | None = WINDOW

    def __post_init__(self) -> None:
        if self.stream and self.window is None:
            rule, got = "Rows that stream are shuffled through a window.", "stream=true and window=null"
            raise ConfigError(rule, key="window", got=got, fix=f"Set {{key}}={WINDOW} (MiB), or {{at}}stream=false.")

    def rows_of(self, reader: Reader) -> RowSet:
        """Return the rows of a reader, in memory where they fit, unless the user chose."""
        rows = Stream(reader, self.window and max(1, int(self.window * MIB) // reader.row_bytes))
        large = self.window is not None and len(rows) * reader.row_bytes > LIMIT
        return rows if (large if self.stream is None else self.stream) else rows.rows()
