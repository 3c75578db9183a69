"""Arrays on disk as rows: mapped slice by slice, so that what was read is not kept."""

from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.notes import Digits
from ortpipe.data.rows import PARTS, Rows, check_finite
from ortpipe.data.stream import PIECE, Labels, Stream, opened
from ortpipe.errors import DataError, nearest

if TYPE_CHECKING:
    from typing import IO

LOCAL_HEADER = 30  # bytes of a zip member's own header, in front of its name and extra field


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
        return _header(file, path)


def _header(file: IO[bytes], path: Path) -> Stored:
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in readers:
        raise ValueError(f"an array of format {version}")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("Object arrays hold pickles, which run code when they are opened")
    if path.stat().st_size < file.tell() + math.prod(shape) * dtype.itemsize:
        raise ValueError("the file ends before the array does")
    return Stored(path, file.tell(), dtype, shape, "F" if fortran else "C")


def members(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file by name: mapped where they are stored as they are, else in memory."""
    found: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type == zipfile.ZIP_STORED:
                file.seek(member.header_offset + 26)
                lengths = np.frombuffer(file.read(4), "<u2")
                found[name] = stored(path, member.header_offset + LOCAL_HEADER + int(lengths.sum()))
            else:
                with archive.open(member) as packed:
                    found[name] = np.lib.format.read_array(packed, allow_pickle=False)
    return found


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
    """Rows of sets of arrays, in groups of as many as fit a piece: one set's rows, then the next one's.

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
        for own in sets:
            self._refuse(own)
        arrays = [sets[0].arrays[name] for name in (*self._inputs, label, *filter(None, (sample_weight,)))]
        self.row_bytes = sum(math.prod(array.shape[1:]) * array.dtype.itemsize for array in arrays)
        size = max(1, PIECE // max(1, self.row_bytes))
        self._groups = [
            (own, slice(first, min(first + size, count)))
            for own in sets
            for count in [own.arrays[label].shape[0]]
            for first in range(0, count, size)
        ]
        if not self._groups:
            raise DataError("Data must hold at least one row.", got=f"none in {sets[0].where}", fix="Give rows.")
        self.counts = np.zeros((len(self._groups), len(PARTS)), np.int64)
        sha, labels, digits = hashlib.sha256(), Labels(), Digits()
        for number, (own, cut) in enumerate(self._groups):
            try:
                piece = self.rows(own, cut)
            except DataError:
                for name in (*self._inputs, self._label, *filter(None, (self._weight,))):
                    check_finite(f"{name!r} of {own.where}", own.arrays[name][cut], first=cut.start)
                raise
            part = np.zeros(len(piece), np.int64) if piece.part is None else piece.part
            self.counts[number] = np.bincount(part, minlength=len(PARTS))
            labels.see(piece.label)
            digits.see_rows(piece, cut.start, f" of {own.where}")
            sha.update(f"{piece.digest()}{hashlib.sha256(part.tobytes()).hexdigest()}".encode())
        self.digest, self.labels, self.notes = sha.hexdigest(), labels.values, tuple(digits.notes())

    def pieces(self, group: int) -> Iterator[Rows]:
        """Yield the rows of a group, all at once."""
        own, cut = self._groups[group]
        yield self.rows(own, cut)

    def rows(self, own: ArraySet, cut: slice) -> Rows:
        """Return some rows of a set."""
        label = own.arrays[self._label][cut]
        part = None if own.part is None else np.full(len(label), own.part, np.int8)
        return Rows(
            inputs={name: own.arrays[name][cut] for name in self._inputs},
            label=label,
            sample_weight=None if self._weight is None else own.arrays[self._weight][cut],
            part=part if self._column is None else _codes(self._column, own.arrays[self._column][cut], cut.start),
        )

    def _refuse(self, own: ArraySet) -> None:
        said = [("data.source.label", self._label), ("data.source.sample_weight", self._weight)]
        said += [("data.split.column", self._column), *(("an input of the first file", n) for n in self._inputs)]
        for key, name in said:
            if name is not None and name not in own.arrays:
                raise DataError(
                    "The data must hold every array that is named by data.source.label and sample_weight, "
                    "by data.split.column, and the inputs of their first part.",
                    got=f"{key}={name!r} for {own.where}",
                    fix=nearest(name, own.arrays),
                )
        for _, name in said:
            if name is None:
                continue
            given, first = own.arrays[name].shape, self._sets[0].arrays[name].shape
            if given[1:] != first[1:]:
                raise DataError(
                    "An array has the same width in every part of the data.",
                    got=f"{name!r} of {own.where} has shape {given}, {first[1:]} per row in the first part",
                    fix="Check data.split.",
                )
        shape = own.arrays[self._label].shape
        for name, array in own.arrays.items():
            if not array.shape or array.shape[:1] != shape[:1]:
                raise DataError(
                    "Every array must have one entry per row.",
                    got=f"{name!r} of {own.where} has shape {array.shape}, the labels {shape}",
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


def rows_of(
    sets: Sequence[ArraySet], label: str, sample_weight: str | None, column: str | None, stream: bool | None
) -> Rows | Stream:
    """Return the rows of arrays, in memory where they fit, unless the user chose."""
    return opened(ArrayReader(sets, label, sample_weight, column), stream)
