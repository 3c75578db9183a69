"""What sources of arrays on disk share: which array is what, for each part of the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.data.files import paths_of
from ortpipe.data.rows import Rows
from ortpipe.settings import Config

if TYPE_CHECKING:
    from ortpipe.data.arrays import Array
    from ortpipe.data.config import SplitConfig
    from ortpipe.data.stream import Stream


@dataclass(frozen=True)
class ArraySource(Config, ABC):
    """Arrays by name: `label` and `sample_weight` name theirs, every other array is an input by its name.

    Attributes:
        path: where they are.
        label: the array of labels, shape [N] or [N, K].
        sample_weight: the array of row weights, shape [N], or nothing.
        stream: read rows anew for every epoch; null: where they take more than 256 MiB.
    """

    path: str
    label: str = "y"
    sample_weight: str | None = None
    stream: bool | None = None

    def __call__(self, split: SplitConfig | None = None) -> Rows | Stream:
        """Read the arrays, or map them; pickled objects are refused."""
        from ortpipe.data.arrays import ArraySet, rows_of

        column = split.column if split else None
        sets = [ArraySet(path, self.arrays(Path(path), column), part) for path, part in paths_of(self.path, split)]
        return rows_of(sets, self.label, self.sample_weight, column, self.stream)

    @abstractmethod
    def arrays(self, path: Path, column: str | None) -> Mapping[str, Array]:
        """Return the arrays of a path by name; `column` is that of parts."""
