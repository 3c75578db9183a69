"""Rows that do not fit in memory: read anew for every pass, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ortpipe.data.draw import Draw
from ortpipe.data.rows import Rows, RowSet, joined
from ortpipe.errors import ConfigError
from ortpipe.hashing import digest_of
from ortpipe.settings import Config, Count

MIB = 2**20
LIMIT = 256 * MIB  # bytes of rows, beyond which they are not held in memory unless the user says so
WINDOW = 64  # MiB of rows that are shuffled together
DISTINCT = 2**16  # labels that are remembered


class Reader(Protocol):
    """Where the rows of a stream are: groups that can be read in any order, any number of times; see `RowSet`."""

    counts: np.ndarray
    labels: dict[str, np.ndarray | None]  # of the prediction, "", and of each head
    row_bytes: int
    notes: tuple[str, ...]
    digest: str  # sha256 (hex) of the content

    def pieces(self, group: int) -> Iterator[Rows]:
        """Yield the rows of a group in pieces; each says which part its rows are in, unless all are to train on."""


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
    """The rows of a reader in its order, or of one part: its place in `PARTS`, and the draw of those to train on."""

    on_disk: ClassVar[bool] = True

    def __init__(
        self, reader: Reader, window: int | None, part: tuple[int, Draw] | None = None, head: str = ""
    ) -> None:
        self._reader, self._part, self._head, self.window, self.notes = reader, part, head, window, reader.notes
        self.counts, self.labels, self.row_bytes = reader.counts, reader.labels.get(head), reader.row_bytes

    def __len__(self) -> int:
        if self._part is None:
            return int(self.counts.sum())
        part, draw = self._part
        return int(self.counts[:, part].sum()) * (part > 0) + draw.counts[part]

    def digest(self) -> str:
        """Return the sha256 (hex) of the content, of which rows these are, and of a window that does not hold all."""
        part = None if self._part is None else [self._part[0], self._part[1].key]
        order = [] if self.window is None or self.window >= len(self) else [self.window, self.counts.tolist()]
        return digest_of("stream", self._reader.digest, part, order)

    def select(self, part: int, draw: Draw) -> Stream:
        """Return the rows of one part, a place in `PARTS`."""
        return Stream(self._reader, self.window, (part, draw), self._head)

    def of(self, head: str) -> Stream:
        """Return the rows with the label of this further output as theirs; themselves of ""."""
        return Stream(self._reader, self.window, self._part, head)

    def read(self, groups: Iterable[int] | None = None) -> Iterator[Rows]:
        """Yield the rows of these groups in this order (all, as they are), as the reader gives them."""
        for group in range(len(self.counts)) if groups is None else groups:
            if self._part is None:
                yield from (piece.of(self._head) for piece in self._reader.pieces(group))
                continue
            part, draw = self._part
            if not (self.counts[group, 0] or self.counts[group, part]):
                continue
            seen = draw.before[group].copy()
            for piece in self._reader.pieces(group):
                places = np.flatnonzero(draw.parts(piece.label, piece.part, seen) == part)
                if len(places):
                    yield piece.take(places).replace(part=None).of(self._head)
            draw.check_group(group, seen)

    def rows(self) -> Rows:
        """Return every row, in memory."""
        sizes = () if self.window is None else tuple(self.counts.sum(axis=1).tolist())
        return joined(list(self.read())).replace(notes=self.notes, window=self.window, group_sizes=sizes)


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

    def opened(self, reader: Reader) -> RowSet:
        """Return the rows of a reader, in memory where they fit, unless the user chose."""
        rows = Stream(reader, self.window and max(1, int(self.window * MIB) // reader.row_bytes))
        large = self.window is not None and len(rows) * reader.row_bytes > LIMIT
        return rows if (large if self.stream is None else self.stream) else rows.rows()
