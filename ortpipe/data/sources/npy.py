"""Arrays in NumPy .npy files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.data.files import files_of, paths_of
from ortpipe.data.rows import Rows
from ortpipe.errors import DataError

if TYPE_CHECKING:
    from ortpipe.data.arrays import Stored
    from ortpipe.data.config import SplitConfig
    from ortpipe.data.stream import Stream


@dataclass(frozen=True)
class Npy:
    """A folder of .npy files, each an array by the file's name; or one file of features beside that of the labels.

    Attributes:
        path: the folder, of which every array but label and weights is an input; or `X.npy`, the only input.
        label: the array of labels, shape [N] or [N, K]: `y` is y.npy in the same folder.
        sample_weight: the array of row weights, shape [N], or nothing.
        stream: read rows anew for every epoch; null: where they take more than 256 MiB.
    """

    path: str
    label: str = "y"
    sample_weight: str | None = None
    stream: bool | None = None

    def __call__(self, split: SplitConfig | None = None) -> Rows | Stream:
        """Map the arrays; pickled objects are refused."""
        from ortpipe.data.arrays import ArraySet, rows_of

        column = split.column if split else None
        sets = [ArraySet(path, self._arrays(Path(path), column), part) for path, part in paths_of(self.path, split)]
        return rows_of(sets, self.label, self.sample_weight, column, self.stream)

    def _arrays(self, path: Path, column: str | None) -> dict[str, Stored]:
        from ortpipe.data.arrays import stored

        files = files_of(str(path), (".npy",))
        if path.is_file():
            beside = [path.with_name(f"{name}.npy") for name in (self.label, self.sample_weight, column) if name]
            files += [file for file in beside if file.is_file() and file != path]
        arrays = {}
        for file in files:
            try:
                arrays[file.stem] = stored(file)
            except ValueError as error:
                raise DataError(
                    "An .npy file holds one plain array.", got=f"{file}: {error}", fix="Write it with numpy.save."
                ) from error
        return arrays
