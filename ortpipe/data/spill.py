"""Rows in an unnamed temporary file: the system frees it when the process ends, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ortpipe.data.rows import PIECE, Rows, concatenate

LARGE_FILES = Path("/var/tmp")  # on disk, also on Linux systems whose /tmp is in memory
ALIGNED = 64  # bytes


def folder() -> str:
    """Return the folder for temporary files of any size: TMPDIR, else /var/tmp, whichever is there and writable."""
    for path in (os.environ.get("TMPDIR"), str(LARGE_FILES)):
        if path and os.path.isdir(path) and os.access(path, os.W_OK):
            return path
    return tempfile.gettempdir()


def fits(size: int) -> bool:
    """Return whether a file of `size` bytes takes at most half of the free space in `folder()`."""
    return 2 * size <= shutil.disk_usage(folder()).free


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an array in a file."""

    first: int  # byte
    dtype: np.dtype
    shape: tuple[int, ...]


class SpillFile:
    """A temporary file of arrays, which is closed with this object."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(dir=folder(), buffering=0)  # noqa: SIM115
        self._end = 0
        weakref.finalize(self, self._file.close)

    def put(self, array: np.ndarray) -> ArrayPlace:
        """Write an array of any dtype but object."""
        first = -(-self._end // ALIGNED) * ALIGNED
        self._file.seek(first)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else b""
        while len(data):  # an unbuffered file may write only a part
            data = data[self._file.write(data) :]  # type: ignore[arg-type]  # an array is a buffer
        self._end = self._file.tell()
        return ArrayPlace(first, array.dtype, array.shape)

    def get(self, place: ArrayPlace) -> np.ndarray:
        """Return a copy of an array, so that its mapping can end and no longer counts as memory."""
        if 0 in place.shape:
            return np.empty(place.shape, place.dtype)
        return np.array(np.memmap(self._file, place.dtype, "r", place.first, place.shape))


class Spill:
    """Rows that are written once and read any number of times, in pieces of PIECE bytes."""

    def __init__(self, file: SpillFile) -> None:
        self._file, self._waiting, self._none = file, list[Rows](), list[Rows]()
        self._pieces: list[dict[str, ArrayPlace | tuple[ArrayPlace, ArrayPlace]]] = []

    def write(self, rows: Rows) -> None:
        """Add rows of the same source; call `flush` after the last ones."""
        self._none = self._none or [rows.replace(inputs={}, heads={}, label=np.empty(0), sample_weight=None)]
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) * rows.row_bytes >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if self._waiting:
            rows = concatenate(self._waiting)
            self._waiting.clear()
            self._pieces.append({name: self._put(array) for name, array in _arrays(rows)})

    def read(self) -> Iterator[Rows]:
        """Yield the rows."""
        for places in self._pieces:
            arrays = {name: self._get(place) for name, place in places.items()}
            inputs, heads = (
                {name[1:]: array for name, array in arrays.items() if name[0] == kind} for kind in (INPUT, HEAD)
            )
            [none] = self._none
            yield none.replace(inputs=inputs, heads=heads, label=arrays[LABEL], sample_weight=arrays.get(WEIGHT))

    def _put(self, array: np.ndarray) -> ArrayPlace | tuple[ArrayPlace, ArrayPlace]:
        """Write an array; of Python strings, the distinct ones and each entry's place among them."""
        if array.dtype != object:
            return self._file.put(array)
        entries = array.reshape(-1).tolist()
        numbers = {word: number for number, word in enumerate(dict.fromkeys(entries))}
        codes = np.array([numbers[word] for word in entries], np.int32).reshape(array.shape)
        return self._file.put(np.frombuffer(json.dumps(list(numbers)).encode(), np.uint8)), self._file.put(codes)

    def _get(self, place: ArrayPlace | tuple[ArrayPlace, ArrayPlace]) -> np.ndarray:
        if isinstance(place, ArrayPlace):
            return self._file.get(place)
        words, codes = map(self._file.get, place)
        return np.array(json.loads(words.tobytes()), object)[codes]


# prefixes of array names: what the array is
INPUT, HEAD, LABEL, WEIGHT = "ihlw"


def _arrays(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    yield from ((f"{INPUT}{name}", array) for name, array in rows.inputs.items())
    yield from ((f"{HEAD}{name}", array) for name, array in rows.heads.items())
    yield LABEL, rows.label
    if rows.sample_weight is not None:
        yield WEIGHT, rows.sample_weight
