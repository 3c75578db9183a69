"""The interface that rows in memory (`rows.py`) and streamed rows (`stream.py`) share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol, Self

import numpy as np

from ortpipe.data.parts import Draw
from ortpipe.data.rows import Rows


class RowSet(Protocol):
    """Rows in memory, or read again for every pass; results do not depend on which."""

    on_disk: ClassVar[bool]  # whether they are read again for every pass

    @property
    def counts(self) -> np.ndarray:
        """Rows by the part that the data name, int [groups, 3]; groups are read one at a time."""

    @property
    def labels(self) -> np.ndarray | None:
        """All labels, or the distinct ones; None if there are too many, or they are floats."""

    @property
    def row_bytes(self) -> int:
        """The bytes of a row's inputs, at least four for each number."""

    @property
    def notes(self) -> tuple[str, ...] | None:
        """Sentences about the rows for the user; None: not looked for yet."""

    @property
    def window(self) -> int | None:
        """How many rows are shuffled together, or held as a sample; None: all of them."""

    def __len__(self) -> int: ...

    def digest(self) -> str:
        """Return the sha256 (hex) of the content, and of all that decides the order of a shuffled epoch."""

    def read(self, groups: Iterable[int] | None = None) -> Iterator[Rows]:
        """Yield the rows of these groups in this order (None: all groups in theirs), in pieces of any size."""

    def read_labels(self, groups: Iterable[int] | None = None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield only the labels of these groups, and the parts of their rows if the data name them."""

    def select(self, part: int, draw: Draw) -> RowSet:
        """Return the rows of one part, a place in `PARTS`."""

    def of(self, head: str) -> Self:
        """Return the rows with the labels of a head as `label`; "" is the prediction."""

    def pieces(self, most: int | None = None) -> Iterator[Rows]:
        """Yield all rows in pieces of PIECE bytes; if more than `most`, only every k-th row, with the least such k."""

    def head(self, count: int) -> Rows:
        """Return the first `count` rows."""

    def sample(self) -> Rows:
        """Return rows that fit in memory: all of them, or as many as the window, evenly spaced."""
