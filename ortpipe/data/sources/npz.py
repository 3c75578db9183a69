"""Arrays in one NumPy .npz file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortpipe.data.arrays import Array, ArraySource, npz_arrays
from ortpipe.errors import DataError


@dataclass(frozen=True)
class Npz(ArraySource):
    """An .npz file: uncompressed arrays (numpy.savez) are memory-mapped, compressed ones read into memory."""

    endings: ClassVar[tuple[str, ...]] = (".npz",)

    def arrays(self, path: Path, column: str | None) -> dict[str, Array]:
        """Return the arrays of the archive."""
        try:
            if not path.is_file():  # a pipe would wait
                raise ValueError("not a file")
            return npz_arrays(path)
        except Exception as error:
            raise DataError(
                "{key} must be an .npz file of arrays of numbers or text.",
                key="path",
                got=f"{path}: {error}",
                fix="Check the path; write such a file with numpy.savez.",
            ) from error
