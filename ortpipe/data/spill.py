"""Rows in an unnamed temporary file: the system frees it when the process ends, however it ends."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe.data.pieces import concatenate
from ortpipe.data.rows import PIECE, Rows

LARGE_FILES = Path("/var/tmp")  # on disk, also on Linux systems whose /tmp is in memory


def folder() -> str:
    """Return the folder for temporary files of any size: TMPDIR, else /var/tmp, whichever is there and writable."""
    for path in (os.environ.get("TMPDIR"), str(LARGE_FILES)):
        if path and os.path.isdir(path) and os.access(path, os.W_OK):
            return path
    return tempfile.gettempdir()


def fits(size: int) -> bool:
    """Return whether a file of `size` bytes takes at most half of the free space in `folder()`."""
    return 2 * size <= shutil.disk_usage(folder()).free


Place = tuple[int, int]  # of a value in a file: its first byte, and how many there are


class SpillFile:
    """A temporary file of values, which only this process can read, and which is closed with this object."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(dir=folder(), buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def put(self, value: object) -> Place:
        """Write a value that can be pickled, such as arrays or rows."""
        first = self._file.seek(0, os.SEEK_END)
        data = memoryview(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        place = first, len(data)
        while data:  # an unbuffered file may write only a part
            data = data[self._file.write(data) :]
        return place

    def get(self, place: Place) -> Any:
        """Return a copy of a value; threads may read at the same time."""
        first, size = place
        return pickle.loads(np.memmap(self._file, np.uint8, "r", first, (size,)).data)


class Spill:
    """Rows that are written once and read any number of times, in pieces of PIECE bytes."""

    def __init__(self, file: SpillFile) -> None:
        self._file, self._waiting, self._places = file, list[Rows](), list[Place]()

    def write(self, rows: Rows) -> None:
        """Add rows of the same source; call `flush` after the last ones."""
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) * rows.row_bytes >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if self._waiting:
            self._places.append(self._file.put(concatenate(self._waiting)))
            self._waiting.clear()

    def read(self) -> Iterator[Rows]:
        """Yield the rows."""
        yield from map(self._file.get, self._places)
