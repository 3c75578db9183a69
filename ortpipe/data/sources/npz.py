"""Arrays in one NumPy .npz file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.data.files import paths_of
from ortpipe.data.rows import Rows
from ortpipe.errors import DataError

if TYPE_CHECKING:
    from ortpipe.data.arrays import Array
    from ortpipe.data.config import SplitConfig
    from ortpipe.data.stream import Stream


@dataclass(frozen=True)
class Npz:
    """An .npz file: `label` and `sample_weight` name their arrays, every other array is an input by its name.

    Attributes:
        path: the file; arrays that are stored uncompressed (numpy.savez) are mapped, others held in memory.
        label: the array of labels, shape [N] or [N, K].
        sample_weight: the array of row weights, shape [N], or nothing.
        stream: read rows anew for every epoch; null: where they take more than 256 MiB.
    """

    path: str
    label: str = "y"
    sample_weight: str | None = None
    stream: bool | None = None

    def __call__(self, split: SplitConfig | None = None) -> Rows | Stream:
        """Read the arrays; pickled objects are refused."""
        from ortpipe.data.arrays import ArraySet, rows_of

        sets = [ArraySet(path, _members(Path(path)), part) for path, part in paths_of(self.path, split)]
        return rows_of(sets, self.label, self.sample_weight, split.column if split else None, self.stream)


def _members(path: Path) -> dict[str, Array]:
    import zipfile

    from ortpipe.data.arrays import members

    if not path.is_file() or not zipfile.is_zipfile(path):
        found = "not a file" if not path.is_file() else "not an archive of arrays"
        raise DataError(
            "data.source.path must be an .npz file of plain arrays.",
            got=f"{path}: {found}",
            fix="Check the path; write such a file with numpy.savez.",
        )
    try:
        return members(path)
    except Exception as error:
        raise DataError(
            "data.source.path must be an .npz file of plain arrays.",
            got=f"{path}: {error}",
            fix="Write it with numpy.savez.",
        ) from error
