"""Arrays in NumPy .npy files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortpipe.data.arrays import Array, ArraySource, map_array
from ortpipe.data.files import files_of
from ortpipe.errors import DataError


@dataclass(frozen=True)
class Npy(ArraySource):
    """A folder of .npy files, one array each, named by its file; or one file of features, with labels beside it.

    `path` is the folder, or a file such as X.npy, which is then the only input; the label `y` is y.npy in its folder.
    """

    endings: ClassVar[tuple[str, ...]] = (".npy",)

    def arrays(self, path: Path, column: str | None) -> dict[str, Array]:
        """Map the arrays of a folder, or of a file and the files beside it that the settings name."""
        files = files_of(str(path), self.endings)
        if path.is_file():
            names = (self.label, self.sample_weight, column, *self.heads.values())
            beside = [path.with_name(f"{name}.npy") for name in names if name]
            files += [file for file in beside if file.exists() and file != path]
        arrays: dict[str, Array] = {}
        for file in files:
            try:
                if not file.is_file():
                    raise ValueError("not a file")
                arrays[file.stem] = map_array(file)
            except ValueError as error:
                rule, fix = "An .npy file must hold one array of numbers or text.", "Write it with numpy.save."
                raise DataError(rule, got=f"{file}: {error}", fix=fix) from error
        return arrays
