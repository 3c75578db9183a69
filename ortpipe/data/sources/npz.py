"""Arrays in one NumPy .npz file."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

from ortpipe.data.array_source import ArraySource
from ortpipe.data.arrays import Array, members
from ortpipe.errors import DataError


@dataclass(frozen=True)
class Npz(ArraySource):
    """An .npz file: arrays that are stored uncompressed (numpy.savez) are mapped, others held in memory."""

    def arrays(self, path: Path, column: str | None) -> dict[str, Array]:
        """Return the arrays of the archive."""
        if not path.is_file() or not zipfile.is_zipfile(path):
            problem = "not a file" if not path.is_file() else "not an archive of arrays"
            raise DataError(
                "data.source.path must be an .npz file of plain arrays.",
                key="path",
                got=f"{path}: {problem}",
                fix="Check the path; write such a file with numpy.savez.",
            )
        try:
            return members(path)
        except Exception as error:
            raise DataError(
                "data.source.path must be an .npz file of plain arrays.",
                key="path",
                got=f"{path}: {error}",
                fix="Write it with numpy.savez.",
            ) from error
