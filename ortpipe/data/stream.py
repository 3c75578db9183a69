"""Rows that do not fit in memory: read anew for every pass, group by group, in pieces of bounded size."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ortpipe.data.rows import PARTS, Rows, joined

if TYPE_CHECKING:
    from ortpipe.data.config import SplitConfig

LIMIT = 256 * 2**20  # bytes of rows, beyond which they are not held in memory
PIECE = 4 * 2**20  # bytes of rows that are read at a time
SAMPLE = 64 * 2**20  # bytes of rows for what needs them in memory
DISTINCT = 2**16  # labels that are remembered


class Reader(Protocol):
    """Where the rows of a stream are: groups that can be read in any order, any number of times.

    Attributes:
        counts: rows of each group by part, int [groups, 3].
        row_bytes: bytes of one row in memory.
        digest: sha256 (hex) of the content.
        labels: the distinct labels; None where there are too many, or they are floats.
        notes: sentences about the rows for whoever runs on them.
    """

    counts: np.ndarray
    row_bytes: int
    digest: str
    labels: np.ndarray | None
    notes: tuple[str, ...]

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


class Stream:
    """The rows of one part of a reader, in the reader's order.

    Args:
        reader: where they are.
        part: which rows, as a place in `PARTS`; None for all.
        config: the fractions that are drawn from the rows to train on.
    """

    def __init__(self, reader: Reader, part: int | None = None, config: SplitConfig | None = None) -> None:
        self._reader, self._part, self._config = reader, part, config
        self._before = np.concatenate([[0], np.cumsum(reader.counts[:, 0])])  # rows to train on before each group
        self.groups = len(reader.counts)
        self.labels, self.notes = reader.labels, reader.notes

    def __len__(self) -> int:
        counts = self._reader.counts.sum(axis=0)
        if self._part is None:
            return int(counts.sum())
        drawn = np.array(self._drawn(int(counts[0])))
        return int((counts * [0, 1, 1] + drawn)[self._part])

    def part(self, part: int, config: SplitConfig | None = None) -> Stream:
        """Return the rows of one part."""
        return Stream(self._reader, part, config)

    @property
    def nbytes(self) -> int:
        """How many bytes the rows would take in memory."""
        return len(self) * self._reader.row_bytes

    def digest(self) -> str:
        """Return the sha256 (hex) of the content, and of which rows of it these are."""
        drawn = self._config and (self._config.fractions, self._config.stratify, self._config.seed)
        said = f"{self._reader.digest} {self._part} {drawn}"
        return hashlib.sha256(said.encode()).hexdigest()

    def pieces(self, most: int | None = None, *, groups: Iterable[int] | None = None) -> Iterator[Rows]:
        """Yield pieces of bounded size, of these groups in this order (all, as they are).

        Where `most` is given, only every k-th row comes, with the least k that leaves so many rows.
        """
        step, seen = 1 if most is None else max(1, -(-len(self) // most)), 0
        for group in range(self.groups) if groups is None else groups:
            for piece in self._taken(group):
                wanted = np.arange(-seen % step, len(piece), step)
                seen += len(piece)
                if len(wanted):
                    yield piece.take(wanted) if step > 1 else piece

    def _taken(self, group: int) -> Iterator[Rows]:
        """Yield what belongs to this part of a group."""
        counts, before = self._reader.counts[group], int(self._before[group])
        if self._part is not None and not counts[self._part] and not counts[0]:
            return
        for number, piece in enumerate(self._reader.pieces(group)):
            if self._part is None:
                yield piece
                continue
            part = np.zeros(len(piece), np.int8) if piece.part is None else piece.part.copy()
            free = np.flatnonzero(part == 0)
            part[free] = self._draw(piece.label[free], before, (group, number))
            before += len(free)
            taken = np.flatnonzero(part == self._part)
            if len(taken):
                yield dataclasses.replace(piece, part=None).take(taken)

    def _drawn(self, rows: int) -> tuple[int, int, int]:
        """Return how many of the first so many rows to train on stay, and go to validation and to the test."""
        test, validation = self._config.fractions if self._config else (0.0, 0.0)
        held = round((test + validation) * rows)
        tested = round(held * test / (test + validation)) if held else 0
        return rows - held, held - tested, tested

    def _draw(self, label: np.ndarray, before: int, key: tuple[int, int]) -> np.ndarray:
        """Return the part of each row of a piece; it follows from the seed, the piece's place and, stratified, labels.

        The rows are lined up at random (stratified: class by class), and evenly spaced ones are taken from the line.
        """
        codes, config = np.zeros(len(label), np.int8), self._config
        if config is None or not any(config.fractions) or not len(label):
            return codes
        line = np.random.default_rng([config.seed, *key]).permutation(len(label))
        if config.stratify:
            line = line[np.argsort(label[line], kind="stable")]
        quota = np.subtract(self._drawn(before + len(label)), self._drawn(before))
        for code in (PARTS.index("test"), PARTS.index("validation")):
            places = ((np.arange(quota[code]) + 0.5) * len(line) / max(1, quota[code])).astype(np.int64)
            codes[line[places]] = code
            line = np.delete(line, places)
        return codes

    def head(self, count: int) -> Rows:
        """Return the first so many rows."""
        found: list[Rows] = []
        for piece in self.pieces():
            found.append(piece.head(count - sum(map(len, found))))
            if sum(map(len, found)) == count:
                break
        return joined(found)

    def sample(self) -> Rows:
        """Return rows that fit in memory, evenly spaced."""
        return joined(list(self.pieces(max(1, SAMPLE // self._reader.row_bytes))))

    def rows(self) -> Rows:
        """Return every row, in memory."""
        return dataclasses.replace(joined(list(self.pieces())), notes=self.notes)


def opened(reader: Reader, stream: bool | None) -> Rows | Stream:
    """Return the rows of a reader, in memory where they fit, unless the user chose."""
    found = Stream(reader)
    return found if stream or (stream is None and found.nbytes > LIMIT) else found.rows()
