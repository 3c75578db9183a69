"""Rows in a temporary file that has no name: the system frees it with the process, however that ends."""

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

LARGE_FILES = Path("/var/tmp")  # on disk where /tmp is in memory, as on several Linux systems
ALIGNED = 64  # bytes


def folder() -> str:
    """Return where temporary files of any size go: TMPDIR, where it is set."""
    chosen = os.environ.get("TMPDIR") or (str(LARGE_FILES) if os.access(LARGE_FILES, os.W_OK) else None)
    return chosen or tempfile.gettempdir()


def fits(size: int) -> bool:
    """Return whether a file of so many bytes takes at most half of the space that is free there."""
    return 2 * size <= shutil.disk_usage(folder()).free


@dataclass(frozen=True)
class ArrayPlace:
    """Where an array is in a file."""

    first: int  # byte
    dtype: np.dtype
    shape: tuple[int, ...]


class SpillFile:
    """A file of arrays, which ends with this object."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(dir=folder(), buffering=0)  # noqa: SIM115
        self._end = 0
        weakref.finalize(self, self._file.close)

    def put(self, array: np.ndarray) -> ArrayPlace:
        """Write an array; not of objects."""
        first = -(-self._end // ALIGNED) * ALIGNED
        self._file.seek(first)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else b""
        while len(data):  # a file without a buffer may take less than it is given
            data = data[self._file.write(data) :]  # type: ignore[arg-type]  # an array is a buffer
        self._end = self._file.tell()
        return ArrayPlace(first, array.dtype, array.shape)

    def get(self, place: ArrayPlace) -> np.ndarray:
        """Return a copy of an array; what was mapped of the file no longer counts as memory then."""
        if 0 in place.shape:
            return np.empty(place.shape, place.dtype)
        return np.array(np.memmap(self._file, place.dtype, "r", place.first, place.shape))


class Spill:
    """Rows that are written once, and read as often as one likes, in pieces of PIECE bytes."""

    def __init__(self, file: SpillFile) -> None:
        self._file, self._waiting, self._none = file, list[Rows](), list[Rows]()
        self._pieces: list[dict[str, ArrayPlace | tuple[ArrayPlace, ArrayPlace]]] = []

    def write(self, rows: Rows) -> None:
        """Add rows of the same source; `flush` ends it."""
        self._none = self._none or [rows.replace(inputs={}, heads={}, label=np.empty(0), sample_weight=None)]
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) * rows.row_bytes >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
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
        """Write an array; of text (str) its distinct words, and each entry's place among them."""
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


# what an array is, in front of its name
INPUT, HEAD, LABEL, WEIGHT = "ihlw"


def _arrays(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    yield from ((f"{INPUT}{name}", array) for name, array in rows.inputs.items())
    yield from ((f"{HEAD}{name}", array) for name, array in rows.heads.items())
    yield LABEL, rows.label
    if rows.sample_weight is not None:
        yield WEIGHT, rows.sample_weight
