"""Rows: inputs by name, labels and weights, checked on creation and identified by a digest."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ortpipe.data.parts import PARTS, Draw
from ortpipe.doors import later
from ortpipe.hashing import Hasher, digest_of

if TYPE_CHECKING:  # for lists, frames, raw columns, and wrong arrays; for files that change
    from ortpipe.data.files import stamp
    from ortpipe.data.frames import arrays_of
    from ortpipe.data.row_checks import check_rows, reject_data, reject_head, text_of
else:
    later(__name__)


if TYPE_CHECKING:
    from ortpipe.data.files import Stamp
    from ortpipe.data.raw_columns import RawColumn
    from ortpipe.data.row_set import RowSet

PIECE = 4 * 2**20  # bytes of inputs that are read, or fed to a model, at a time
SHARES = "teacher"  # a teacher's predictions among the labels of heads: the share of each class [N, K]
LEAST = 4  # bytes that a number counts at least: models read float32


@dataclass(frozen=True)
class Rows:
    """Aligned arrays, one entry per row; lists, frames and series of pandas and Polars become arrays.

    Attributes:
        inputs: model input name → array [N, …]; a single input fits a model's only input under any name, and may be
            the array itself.
        label: [N] or [N, K]; classes as the user writes them (numbers or strings).
        sample_weight: [N], or None if every row counts once.
        heads: further output of the model with a loss of its own → its labels.
        columns: input name → the names of its columns, for inputs of two dimensions with known names.
        kept: raw input → the description of its column; only these inputs may hold nan.
        prepared: what the source did to files to make the inputs, plain values for a model's metadata.
        origin: what else the digest covers, such as the code that made the rows.
        part: [N], each row's part as its place in `PARTS`, if the data name it.
        notes: sentences about the rows for the user, not part of the digest; None: not looked for yet.
        window: how many rows are shuffled together; None: all of them.
        group_sizes: with a window, the number of rows in each group that a stream would read at once.

    Raises:
        DataError: ragged, empty or misaligned arrays, nan or infinite values.
    """

    inputs: Mapping[str, np.ndarray]
    label: np.ndarray
    sample_weight: np.ndarray | None = None
    heads: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept: Mapping[str, RawColumn] = field(default_factory=dict)
    prepared: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    part: np.ndarray | None = None
    notes: tuple[str, ...] | None = None
    window: int | None = None
    group_sizes: tuple[int, ...] = ()

    on_disk: ClassVar[bool] = False

    def __post_init__(self) -> None:
        inputs = self.inputs if isinstance(self.inputs, Mapping) else {"X": self.inputs}
        arrays = [self.label, self.sample_weight, *inputs.values(), *self.heads.values()]
        if all(array is None or isinstance(array, np.ndarray) for array in arrays):
            self._set(inputs={**inputs}, heads={**self.heads}, columns={**self.columns})
        else:
            self._set(**arrays_of(self, inputs))
        if not self._is_plain():
            check_rows(self)

    def _is_plain(self) -> bool:
        """Return whether all arrays have one entry per row and hold text or finite numbers, none of them objects."""
        weight = self.sample_weight
        arrays = [self.label, *self.inputs.values(), *self.heads.values(), *([] if weight is None else [weight])]
        aligned = bool(self.inputs) and all(array.ndim and len(array) == len(self.label) > 0 for array in arrays)
        finite = all(a.dtype.kind in "biuSU" or (a.dtype.kind == "f" and np.isfinite(a).all()) for a in arrays)
        weighs = weight is None or (weight.ndim == 1 and weight.dtype.kind in "biuf" and (weight >= 0).all())
        return bool(aligned and finite and weighs)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def of(self, head: str) -> Rows:
        """Return the rows with the labels of a head as `label`; "" is the prediction."""
        if head and head not in self.heads:
            reject_head(self, head)
        return self.replace(label=self.heads[head]) if head else self

    def replace(self, **fields: Any) -> Rows:
        """Return the rows with other fields, without checks."""
        rows = copy.copy(self)
        rows._set(**fields)
        return rows

    def __len__(self) -> int:
        return len(self.label)

    @property
    def counts(self) -> np.ndarray:
        """The number of rows by the part that the data name, int [1, 3]."""
        part = np.zeros(len(self), np.int8) if self.part is None else self.part
        return np.bincount(part, minlength=len(PARTS))[None]

    @property
    def labels(self) -> np.ndarray:
        """All labels."""
        return self.label

    @property
    def row_bytes(self) -> int:
        """The bytes of a row's inputs, counting at least four for each number."""
        return row_bytes((array.dtype, array.shape) for array in self.inputs.values())

    def take(self, index: np.ndarray | slice) -> Rows:
        """Return the rows at these positions."""
        return self.replace(
            inputs={name: array[index] for name, array in self.inputs.items()},
            label=self.label[index],
            sample_weight=None if self.sample_weight is None else self.sample_weight[index],
            heads={name: array[index] for name, array in self.heads.items()},
            part=None if self.part is None else self.part[index],
            window=None,
            group_sizes=(),
        )

    def read(self, groups: Iterable[int] | None = None) -> Iterator[Rows]:
        """Yield all rows: they are in memory."""
        yield self

    def read_labels(self, groups: Iterable[int] | None = None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield all labels, and the parts of their rows if the data name them."""
        yield self.label, self.part

    def pieces(self, most: int | None = None) -> Iterator[Rows]:
        """Yield all rows, or every k-th row, in pieces of PIECE bytes."""
        rows, size = self._spaced(most), max(1, PIECE // self.row_bytes)
        for first in range(0, len(rows), size):
            yield rows.take(slice(first, first + size))

    def _spaced(self, most: int | None) -> Rows:
        """Return all rows or, if they are more than `most`, every k-th row."""
        return self if most is None or len(self) <= most else self.take(slice(None, None, -(-len(self) // most)))

    def head(self, count: int) -> Rows:
        """Return the first `count` rows."""
        return self.take(slice(count))

    def sample(self) -> Rows:
        """Return all rows or, if they are more than the window, every k-th row."""
        return self._spaced(self.window)

    def select(self, part: int, draw: Draw) -> Rows:
        """Return the rows of one part, a place in `PARTS`; a part may be empty."""
        places = np.flatnonzero(draw.parts(self.label, self.part, np.zeros_like(draw.before[0])) == part)
        rows = self if len(places) == len(self) else self.take(places)
        sizes = np.diff(np.searchsorted(places, np.cumsum((0, *self.group_sizes))))
        return rows.replace(part=None, window=self.window, group_sizes=tuple(sizes.tolist()))

    def digest(self) -> str:
        """Return the sha256 (hex) of names, dtypes, shapes and values, and of a window that does not hold all rows.

        Known column names count too: a model's metadata record them.
        """
        order = [] if self.window is None or self.window >= len(self) else [self.window, *self.group_sizes]
        hasher = Hasher("rows").add(self.origin, order)
        for name in sorted(self.inputs):
            hasher.add(name, self.inputs[name])
        for name in sorted(self.heads):
            hasher.add("head", name, self.heads[name])
        if self.columns:
            hasher.add("columns", sorted(self.columns.items()))
        if self.kept:
            raw_columns = sorted(self.kept.items())
            hasher.add("kept", *([name, column.kind, column.missing, column.of] for name, column in raw_columns))
        return hasher.add(self.label, self.sample_weight).hexdigest()


@dataclass(frozen=True)
class Data:
    """Rows to train, validate and test on; `validation` and `test` may be absent.

    Attributes:
        train, validation, test: the rows.
        files: the files of the rows, each with a stamp that shows whether it changed (see `files.stamps`).
        class_weight: the factors of some classes in the loss.
        notes: sentences about the rows for the user; not part of the digest.
    """

    train: RowSet
    validation: RowSet | None = None
    test: RowSet | None = None
    files: Mapping[str, Stamp] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    class_weight: Mapping[int | str, float] = field(default_factory=dict)

    def digest(self) -> str:
        """Return the sha256 (hex) of the three parts, and of the class weights if there are any."""
        weights = [sorted(self.class_weight.items())] if self.class_weight else []
        return digest_of("data", *self.digests, *weights)

    def __repr__(self) -> str:
        """Return the number of rows of each part, and the shapes of a row."""
        return text_of(self)

    @functools.cached_property
    def digests(self) -> tuple[str | None, ...]:
        """The digest of each part; None for an absent one."""
        return tuple(None if part is None else part.digest() for part in self._parts)

    def of(self, head: str) -> Data:
        """Return the data with the labels of a head as `label`; "" is the prediction."""
        _, validation, test = (None if part is None else part.of(head) for part in self._parts)
        return dataclasses.replace(self, train=self.train.of(head), validation=validation, test=test)

    @property
    def _parts(self) -> tuple[RowSet | None, ...]:
        return self.train, self.validation, self.test

    @functools.cached_property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return any(part is not None and part.head(1).sample_weight is not None for part in self._parts)

    def changed(self) -> bool:
        """Return whether the files of streamed rows have changed since they were first read."""
        on_disk = any(part is not None and part.on_disk for part in self._parts)
        return on_disk and any(stamp(file) != first_stamp for file, first_stamp in self.files.items())


def check_data(data: object) -> None:
    """Reject everything but a `Data`, such as rows that were not split."""
    if not isinstance(data, Data):
        reject_data(data)


def row_bytes(arrays: Iterable[tuple[np.dtype, Sequence[int]]]) -> int:
    """Return the bytes of one row of arrays [N, …], counting at least four for each number."""
    return max(1, sum(max(LEAST, dtype.itemsize) * int(np.prod(shape[1:])) for dtype, shape in arrays))
