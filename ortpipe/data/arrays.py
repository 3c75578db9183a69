"""Arrays on disk as rows: memory-mapped slice by slice, so that only the current slice is in memory."""

import io
import math
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.lib import format as npy

from ortpipe.bounded import check_archive
from ortpipe.data.files import paths_of
from ortpipe.data.float32 import LostDigits
from ortpipe.data.groups import by_row, offset_position
from ortpipe.data.parts import PARTS, SplitConfig
from ortpipe.data.prefetch import prefetch
from ortpipe.data.reader import Labelled, check_parts
from ortpipe.data.row_checks import check_finite
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows, row_bytes
from ortpipe.data.stream import Labels, Windowed
from ortpipe.errors import DataError, nearest
from ortpipe.hashing import Hasher

GROUP = 2**20  # bytes of rows that are read at once; a shuffle moves them together, up to the window
LOCAL_HEADER = 30  # bytes of a zip member's local header before its name and extra field
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class MappedArray:
    """An array in an .npy file, or in an uncompressed member of an .npz file."""

    file: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    order: str

    def __getitem__(self, cut: slice) -> np.ndarray:
        """Return a copy of some rows; the mapping ends with this call."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)[cut]
        mapped = np.memmap(self.file, self.dtype, "r", self.offset, self.shape, self.order)  # type: ignore[call-overload]
        return np.array(mapped[cut])


Array = MappedArray | np.ndarray


def map_array(path: Path, start: int = 0) -> MappedArray:
    """Return the array at this byte of a file; raise ValueError unless it holds numbers or text."""
    with path.open("rb") as file:
        file.seek(start)
        return MappedArray(path, *_header(file, path.stat().st_size))


def _header(file: IO[bytes], end: int) -> tuple[int, np.dtype, tuple[int, ...], Literal["F", "C"]]:
    """Return where the array in an .npy file begins, its type, shape and order."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"unknown .npy format version {version}")
    shape, fortran, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("object arrays hold pickles, which run code when they are loaded")
    if min(shape, default=0) < 0 or end < file.tell() + math.prod(shape) * dtype.itemsize:
        raise ValueError("the file ends before the array does")
    return file.tell(), dtype, shape, "F" if fortran else "C"


def npz_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file by name: mapped if stored uncompressed, else in memory.

    NumPy cannot map a member of an archive; the member's local header gives the offset of its array.
    """
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        check_archive(archive)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type == zipfile.ZIP_STORED:
                file.seek(member.header_offset + LOCAL_HEADER - 4)
                lengths = np.frombuffer(file.read(4), "<u2")
                arrays[name] = map_array(path, member.header_offset + LOCAL_HEADER + int(lengths.sum()))
            else:
                content = archive.read(member)
                offset, dtype, shape, order = _header(io.BytesIO(content), len(content))
                arrays[name] = np.ndarray(shape, dtype, content, offset, order=order)
    return arrays


@dataclass(frozen=True)
class ArraySet:
    """Arrays of the same rows, by name."""

    where: str  # their name in messages
    arrays: Mapping[str, Array]
    part: int | None  # of all their rows, as a place in `PARTS`; None if files do not define parts


class ArrayReader:
    """Reads the rows of sets of arrays, set after set, in groups of GROUP bytes (see `Reader`).

    The constructor reads all rows once to check, count and hash them. The first set names the inputs; label,
    sample_weight, column and heads name the arrays of labels, row weights, parts and labels of further outputs.
    """

    def __init__(
        self,
        sets: Sequence[ArraySet],
        label: str,
        sample_weight: str | None,
        column: str | None,
        heads: Mapping[str, str] | None = None,
    ) -> None:
        self._label, self._weight, self._column, self._heads = label, sample_weight, column, heads or {}
        arrays = sets[0].arrays
        not_inputs = (label, sample_weight, column, *self._heads.values())
        self._inputs = [name for name in arrays if name not in not_inputs]
        for array_set in sets:
            self._check_set(array_set, arrays)
        self.row_bytes = row_bytes((arrays[name].dtype, arrays[name].shape) for name in self._inputs)
        size = max(1, GROUP // self.row_bytes)
        self._groups = [
            (array_set, slice(first, min(first + size, count)))
            for array_set in sets
            for count in [array_set.arrays[label].shape[0]]
            for first in range(0, count, size)
        ]
        if not self._groups:
            raise DataError(
                "Data must hold at least one row.", got=f"none in {sets[0].where}", fix="Give at least one row."
            )
        self.counts = np.zeros((len(self._groups), len(PARTS)), np.int64)
        hasher, labels, digits = Hasher("arrays"), {name: Labels() for name in ("", *self._heads)}, LostDigits()
        pieces = prefetch(map(self._checked_rows, range(len(self._groups))))
        for number, ((array_set, cut), piece) in enumerate(zip(self._groups, pieces, strict=True)):
            part = np.zeros(len(piece), np.int64) if piece.part is None else piece.part
            self.counts[number] = np.bincount(part, minlength=len(PARTS))
            for name, distinct in labels.items():
                distinct.update(piece.of(name).label)
            digits.update_rows(piece, offset_position(by_row(array_set.where), cut.start))
            hasher.add(piece.digest(), part)
        self.digest, self.notes = hasher.hexdigest(), tuple(digits.notes())
        self.labels = {name: distinct.values for name, distinct in labels.items()}

    def pieces(self, groups: Iterable[int]) -> Iterator[Iterator[Rows]]:
        """Yield the rows of each group, in one piece."""
        for group in groups:
            yield iter([self._rows(group)])

    def _rows(self, group: int) -> Rows:
        array_set, cut = self._groups[group]
        [(labels, part)] = self.read_labels(group)
        return Rows(
            inputs={name: array_set.arrays[name][cut] for name in self._inputs},
            label=labels.pop(""),
            sample_weight=None if self._weight is None else array_set.arrays[self._weight][cut],
            heads=labels,
            part=part,
        )

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield a group's labels, in one piece."""
        array_set, cut = self._groups[group]
        label = array_set.arrays[self._label][cut]
        part = None if array_set.part is None else np.full(len(label), array_set.part, np.int8)
        if self._column is not None:
            words, part = array_set.arrays[self._column][cut], np.full(len(label), -1, np.int8)
            for code, name in enumerate(PARTS):
                part[words == name] = code
            check_parts(part, words, self._column, offset_position(by_row(array_set.where), cut.start))
        yield {"": label, **{head: array_set.arrays[name][cut] for head, name in self._heads.items()}}, part

    def _checked_rows(self, group: int) -> Rows:
        """Return the rows of a group; raise with the array and row of a value that is not finite."""
        try:
            return self._rows(group)
        except DataError:
            array_set, cut = self._groups[group]
            for name in (*self._inputs, self._label, *self._heads.values(), *filter(None, [self._weight])):
                check_finite(f"{name!r} of {array_set.where}", array_set.arrays[name][cut], first=cut.start)
            raise

    def _check_set(self, array_set: ArraySet, first: Mapping[str, Array]) -> None:
        """Reject a set that lacks an array of the settings or of the first set, or has one of another width."""
        arrays, where = array_set.arrays, array_set.where
        settings = {"label": self._label, "sample_weight": self._weight, "split.column": self._column}
        settings |= {f"heads.{head}": name for head, name in self._heads.items()}
        for key, name in [*settings.items(), *(("an input of the first file", name) for name in self._inputs)]:
            if name is None:
                continue
            if name not in arrays:
                raise DataError(
                    "The data must hold every array that is named by {at}label and {at}sample_weight, by split.column, "
                    "and the inputs of their first part.",
                    key=key if key in ("label", "sample_weight") or key.startswith("heads.") else None,
                    got=f"{key}={name!r} for {where}",
                    fix=nearest(name, arrays),
                )
            if arrays[name].shape[1:] != first[name].shape[1:]:
                shape, width = arrays[name].shape, first[name].shape[1:]
                raise DataError(
                    "An array must have the same width in every part of the data.",
                    got=f"{name!r} of {where} has shape {shape}, but {width} per row in the first part",
                    fix="Check the files of the split.",
                )
        shape = arrays[self._label].shape
        for name, array in arrays.items():
            if not array.shape or array.shape[:1] != shape[:1]:
                rule, fix = "Every array must have one entry per row.", "Check for ragged or missing rows."
                raise DataError(rule, got=f"{name!r} of {where} has shape {array.shape}, the labels {shape}", fix=fix)


@dataclass(frozen=True)
class ArraySource(Windowed, ABC):
    """Arrays by name: the settings name the arrays of labels and weights; every other array is an input.

    Attributes:
        path: the file or folder of the arrays.
        label: the array of labels, shape [N] or [N, K].
        sample_weight: the array of row weights, shape [N]; null: none.
        heads: further output of the model with a loss of its own → the array of its labels.
    """

    path: str
    label: str = "y"
    sample_weight: str | None = None
    heads: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Map the arrays or read them; pickled objects are rejected."""
        column = split.column if split else None
        sets = [ArraySet(path, self.arrays(Path(path), column), part) for path, part in paths_of(self.path, split)]
        return self.rows_of(ArrayReader(sets, self.label, self.sample_weight, column, self.heads))

    @abstractmethod
    def arrays(self, path: Path, column: str | None) -> Mapping[str, Array]:
        """Return the arrays of a path by name; `column` names the array of parts."""
