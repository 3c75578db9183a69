"""What sources of arrays on disk share: which array is what, for each part of the data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ortpipe.data.arrays import Array, ArrayReader, ArraySet
from ortpipe.data.config import SplitConfig
from ortpipe.data.files import paths_of
from ortpipe.data.rows import RowSet
from ortpipe.data.stream import WINDOW, check_window, opened
from ortpipe.settings import Config, Count


@dataclass(frozen=True)
class ArraySource(Config, ABC):
    """Arrays by name: `label` and `sample_weight` name theirs, every other array is an input by its name.

    Attributes:
        path: where they are.
        label: the array of labels, shape [N] or [N, K].
        sample_weight: the array of row weights, shape [N], or nothing.
        stream: read rows anew for every epoch; null: where they take more than 256 MiB.
        window: MiB of rows that are shuffled together, whether they stream or not; null: all, which never stream.
    """

    path: str
    label: str = "y"
    sample_weight: str | None = None
    stream: bool | None = None
    window: Count | None = WINDOW

    def __post_init__(self) -> None:
        check_window(self.stream, self.window)

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read the arrays, or map them; pickled objects are refused."""
        column = split.column if split else None
        sets = [ArraySet(path, self.arrays(Path(path), column), part) for path, part in paths_of(self.path, split)]
        return opened(ArrayReader(sets, self.label, self.sample_weight, column), self.stream, self.window)

    @abstractmethod
    def arrays(self, path: Path, column: str | None) -> Mapping[str, Array]:
        """Return the arrays of a path by name; `column` is that of parts."""
