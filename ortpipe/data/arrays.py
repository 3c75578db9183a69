"""Arrays on disk as rows: mapped slice by slice, so that what was read is not kept."""

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from ortpipe.data.config import PARTS
from ortpipe.data.float32 import LostDigits
from ortpipe.data.rows import Rows, check_finite, row_bytes
from ortpipe.data.stream import Labels
from ortpipe.errors import DataError, nearest
from ortpipe.hashing import Hasher

GROUP = 2**20  # bytes of rows that are read in one go, and stay together until they come in a window
LOCAL_HEADER = 30  # bytes of a zip member's own header, in front of its name and extra field
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class Stored:
    """An array in an .npy file, or in an uncompressed member of an .npz file."""

    file: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    order: str

    def __getitem__(self, cut: slice) -> np.ndarray:
        """Return a copy of some rows; the mapping lives no longer than this call."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)[cut]
        mapped = np.memmap(self.file, self.dtype, "r", self.offset, self.shape, self.order)  # type: ignore[call-overload]
        return np.array(mapped[cut])


Array = Stored | np.ndarray


def stored(path: Path, start: int = 0) -> Stored:
    """Return the array that begins at this byte of a file.

    Raises:
        ValueError: it is no array of numbers or text.
    """
    with path.open("rb") as file:
        file.seek(start)
        version = npy.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"an array of format {version}")
        shape, fortran, dtype = HEADERS[version](file)
        offset = file.tell()
    if dtype.hasobject:
        raise ValueError("Object arrays hold pickles, which run code when they are opened")
    if path.stat().st_size < offset + math.prod(shape) * dtype.itemsize:
        raise ValueError("the file ends before the array does")
    return Stored(path, offset, dtype, shape, "F" if fortran else "C")


def members(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file by name: mapped where they are stored as they are, else in memory.

    NumPy maps no member of an archive: where its array begins stands in the member's own header.
    """
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type == zipfile.ZIP_STORED:
                file.seek(member.header_offset + LOCAL_HEADER - 4)
                lengths = np.frombuffer(file.read(4), "<u2")
                arrays[name] = stored(path, member.header_offset + LOCAL_HEADER + int(lengths.sum()))
            else:
                with archive.open(member) as packed:
                    arrays[name] = npy.read_array(packed, allow_pickle=False)
    return arrays


@dataclass(frozen=True)
class ArraySet:
    """Arrays of the same rows, by name.

    Attributes:
        where: what to call them in messages.
        arrays: the arrays.
        part: of all of their rows, as a place in `PARTS`; None where files do not say it.
    """

    where: str
    arrays: Mapping[str, Array]
    part: int | None


class ArrayReader:
    """Rows of sets of arrays, in groups of GROUP bytes: one set's rows, then the next one's.

    Everything is read once when it is made: checked, counted, and taken into the digest.

    Args:
        sets: the first one names the inputs; the others have the same.
        label, sample_weight, column: the arrays of labels, of row weights and of parts.

    Raises:
        DataError: an array that is named is missing, or arrays have not the same number of rows.
    """

    def __init__(self, sets: Sequence[ArraySet], label: str, sample_weight: str | None, column: str | None) -> None:
        self._sets, self._label, self._weight, self._column = sets, label, sample_weight, column
        self._inputs = [name for name in sets[0].arrays if name not in (label, sample_weight, column)]
        for array_set in sets:
            self._refuse(array_set)
        self.row_bytes = row_bytes((sets[0].arrays[name].dtype, sets[0].arrays[name].shape) for name in self._inputs)
        size = max(1, GROUP // self.row_bytes)
        self._groups = [
            (array_set, slice(first, min(first + size, count)))
            for array_set in sets
            for count in [array_set.arrays[label].shape[0]]
            for first in range(0, count, size)
        ]
        if not self._groups:
            raise DataError("Data must hold at least one row.", got=f"none in {sets[0].where}", fix="Give rows.")
        self.counts = np.zeros((len(self._groups), len(PARTS)), np.int64)
        hasher, labels, digits = Hasher("arrays"), Labels(), LostDigits()
        for number, (array_set, cut) in enumerate(self._groups):
            try:
                piece = self.rows(array_set, cut)
            except DataError:
                for name in (*self._inputs, self._label, *filter(None, (self._weight,))):
                    check_finite(f"{name!r} of {array_set.where}", array_set.arrays[name][cut], first=cut.start)
                raise
            part = np.zeros(len(piece), np.int64) if piece.part is None else piece.part
            self.counts[number] = np.bincount(part, minlength=len(PARTS))
            labels.see(piece.label)
            digits.see_rows(piece, cut.start, f" of {array_set.where}")
            hasher.add(piece.digest(), part)
        self.digest, self.labels, self.notes = hasher.hexdigest(), labels.values, tuple(digits.notes())

    def pieces(self, group: int) -> Iterator[Rows]:
        """Yield the rows of a group, all at once."""
        array_set, cut = self._groups[group]
        yield self.rows(array_set, cut)

    def rows(self, array_set: ArraySet, cut: slice) -> Rows:
        """Return some rows of a set."""
        label = array_set.arrays[self._label][cut]
        part = None if array_set.part is None else np.full(len(label), array_set.part, np.int8)
        return Rows(
            inputs={name: array_set.arrays[name][cut] for name in self._inputs},
            label=label,
            sample_weight=None if self._weight is None else array_set.arrays[self._weight][cut],
            part=part if self._column is None else _codes(self._column, array_set.arrays[self._column][cut], cut.start),
        )

    def _refuse(self, array_set: ArraySet) -> None:
        named = [("data.source.label", self._label), ("data.source.sample_weight", self._weight)]
        named += [("data.split.column", self._column), *(("an input of the first file", n) for n in self._inputs)]
        for key, name in named:
            if name is not None and name not in array_set.arrays:
                raise DataError(
                    "The data must hold every array that is named by data.source.label and sample_weight, "
                    "by data.split.column, and the inputs of their first part.",
                    got=f"{key}={name!r} for {array_set.where}",
                    fix=nearest(name, array_set.arrays),
                )
        for _, name in named:
            if name is None:
                continue
            shape, first = array_set.arrays[name].shape, self._sets[0].arrays[name].shape
            if shape[1:] != first[1:]:
                raise DataError(
                    "An array has the same width in every part of the data.",
                    got=f"{name!r} of {array_set.where} has shape {shape}, {first[1:]} per row in the first part",
                    fix="Check data.split.",
                )
        shape = array_set.arrays[self._label].shape
        for name, array in array_set.arrays.items():
            if not array.shape or array.shape[:1] != shape[:1]:
                raise DataError(
                    "Every array must have one entry per row.",
                    got=f"{name!r} of {array_set.where} has shape {array.shape}, the labels {shape}",
                    fix="Check for ragged or missing rows.",
                )


def _codes(column: str, words: np.ndarray, first: int) -> np.ndarray:
    """Return each row's part as its place in `PARTS`."""
    part = np.full(len(words), -1, np.int8)
    for code, name in enumerate(PARTS):
        part[words == name] = code
    if (part < 0).any():
        row = int(np.argmax(part < 0))
        raise DataError(
            "data.split.column holds the words train, validation and test.",
            got=f"{words[row : row + 1].tolist()[0]!r} in {column!r}, row {first + row}",
            fix=nearest(str(words[row]), PARTS),
        )
    return part
