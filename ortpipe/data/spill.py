"""Rows in an unnamed temporary file: the system frees it when the process ends, however it ends.

Of a stream, these are the validation and test rows, and a sample of the training rows.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ortpipe.data.parts import PARTS, TRAIN, Draw
from ortpipe.data.pieces import concatenate
from ortpipe.data.prefetch import prefetch
from ortpipe.data.reader import Reader, groups_with, part_size, rows_with_parts
from ortpipe.data.rows import PIECE, Rows
from ortpipe.errors import DataError

LOG = logging.getLogger(__name__)
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

    def __getstate__(self) -> NoReturn:
        rule = "Workers read streamed rows from the files, and CSV files are parsed once, by the first process."
        fix = "Save the rows as Parquet, set {@data.source.stream}=false, or train without workers."
        raise DataError(rule, got="rows of text for another process", fix=fix)

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


class PartSpill:
    """The validation and test rows of a split, and a sample of the training rows, in an unnamed temporary file.

    A random split scatters them over all groups, so that reading each would take a pass over all rows. When one is
    first needed, a single pass writes all of them to the file, from which they are read from then on.

    Args:
        reader: reads all rows.
        draw: the random split.
        window: the maximum number of rows in a sample; None: all.
    """

    def __init__(self, reader: Reader, draw: Draw, window: int | None) -> None:
        self._reader, self._draw = reader, draw
        counts = reader.counts
        rows = [part_size(counts, draw, part) for part in range(len(PARTS))]
        self._every = 1 if window is None else max(1, -(-rows[TRAIN] // window))
        sizes = [-(-rows[TRAIN] // self._every), *rows[1:]]
        # a part with its own groups, such as files, is read from them
        scattered = [counts[groups_with(counts, draw, part)].sum() > 2 * size > 0 for part, size in enumerate(sizes)]
        scattered[TRAIN] = self._every > 1
        self._parts = [part for part, is_scattered in enumerate(scattered) if is_scattered]
        self._bytes = sum(sizes[part] for part in self._parts) * reader.row_bytes
        self._spills: dict[int, Spill] | None = None if self._parts and fits(self._bytes) else {}

    def has_draw(self, draw: Draw) -> bool:
        """Return whether the parts are those of this draw."""
        return self._draw is draw

    @property
    def notes(self) -> tuple[str, ...]:
        """The note about the file, before it is written."""
        if not self._parts:
            return ()
        size = max(1, round(self._bytes / 1e6))
        rows = f"validation and test rows, and a sample of the training rows, {size:,} MB,"
        if self._spills == {}:
            return (f"{rows} are read from the data each time: {folder()} (TMPDIR) has no room for a temporary file",)
        return (
            f"{rows} are in an unnamed temporary file in {folder()} (TMPDIR), which is freed when the process ends",
        )

    def part(self, part: int) -> Spill | None:
        """Return the rows of a part (of train, a sample); None if they are read from the data."""
        if self._spills is None:
            self._spills = self._write_parts() if part in self._parts else None
        return (self._spills or {}).get(part)

    def _write_parts(self) -> dict[int, Spill]:
        reader, draw, train_rows = self._reader, self._draw, 0
        groups = np.any([groups_with(reader.counts, draw, part) for part in self._parts], axis=0)
        try:
            file = SpillFile()
        except OSError as error:
            return _log_failure(error)
        spills = {part: Spill(file) for part in self._parts}
        for piece, codes in prefetch(rows_with_parts(reader, draw, np.flatnonzero(groups).tolist())):
            for part, spill in spills.items():
                places = np.flatnonzero(codes == part)
                if part == TRAIN:
                    count, places = len(places), places[-train_rows % self._every :: self._every]
                    train_rows += count
                if len(places):
                    try:
                        spill.write(piece.take(places).replace(part=None))
                    except OSError as error:
                        return _log_failure(error)
        try:
            for spill in spills.values():
                spill.flush()
        except OSError as error:
            return _log_failure(error)
        return spills


def _log_failure(error: OSError) -> dict[int, Spill]:
    LOG.warning("cannot write a temporary file in %s (%s): rows are read from the data each time", folder(), error)
    return {}
