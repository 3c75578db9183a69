"""Rows: inputs by name, labels, weights; checked when made, told apart by a digest."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortpipe.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from ortpipe.data.stream import Stream

PARTS = ("train", "validation", "test")
Category = str | int | bool
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True)
class Rows:
    """Aligned arrays, one entry per row; lists, frames and series of pandas and Polars become arrays.

    Attributes:
        inputs: model input name → array [N, …]; one input alone fits a model's only input under any name, and may be
            given as it is.
        label: [N] or [N, K]; classes as the user writes them (numbers or strings).
        sample_weight: [N], or None where every row counts once.
        columns: input name → the names of its columns, where it has two dimensions and they are known.
        categories: column of the source → its values, in the order of their codes.
        origin: what else the digest covers, such as the code that made them.
        part: [N], each row's part as its place in `PARTS`, where the data say it themselves.
        notes: sentences about them, where whoever read them looked; not part of the digest.

    Raises:
        DataError: ragged, empty or misaligned arrays, nan or infinite values.
    """

    inputs: Mapping[str, np.ndarray]
    label: np.ndarray
    sample_weight: np.ndarray | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    categories: Mapping[str, tuple[Category, ...]] = field(default_factory=dict)
    origin: str = ""
    part: np.ndarray | None = None
    notes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._take_arrays()
        if not self.inputs:
            raise DataError("Data must hold at least one input.", got="none", fix="Add an array of features.")
        if self.label.ndim == 0 or not len(self.label):
            raise DataError(
                "Data must hold at least one row.", got=f"labels of shape {self.label.shape}", fix="Give rows."
            )
        for name, array in self.inputs.items():
            self._check(f"input {name!r}", array, self.columns.get(name, ()))
        self._check("label", self.label)
        if self.sample_weight is not None:
            if self.sample_weight.ndim != 1:
                raise DataError(
                    "Row weights have shape [N].",
                    got=self.sample_weight.shape,
                    fix="Give one weight per row.",
                )
            if self.sample_weight.dtype.kind not in "biuf":
                raise DataError(
                    "Row weights are numbers.",
                    got=f"an array of {self.sample_weight.dtype}",
                    fix="Choose another weight column.",
                )
            self._check("sample_weight", self.sample_weight)
            if (self.sample_weight < 0).any():
                raise DataError(
                    "Row weights are not negative.",
                    got=self.sample_weight.min(),
                    fix="Choose another weight column.",
                )

    def _take_arrays(self) -> None:
        """Make arrays of what is none yet, and keep the names of a frame's columns."""
        from ortpipe.data.frames import as_array, column_names

        given = self.inputs if isinstance(self.inputs, Mapping) else {"X": self.inputs}
        named = {name: names for name, value in given.items() if (names := column_names(value))}
        arrays = {name: as_array(f"input {name!r}", value) for name, value in given.items()}
        weight = None if self.sample_weight is None else as_array("sample_weight", self.sample_weight)
        for name, value in {
            "inputs": arrays,
            "label": as_array("label", self.label),
            "sample_weight": weight,
            "columns": {**named, **self.columns},
        }.items():
            object.__setattr__(self, name, value)

    def _check(self, name: str, array: np.ndarray, columns: Sequence[str] = ()) -> None:
        if array.ndim == 0 or len(array) != len(self.label):
            raise DataError(
                "Every array must have one entry per row.",
                got=f"{name} has shape {array.shape}, the labels {self.label.shape}",
                fix="Check for ragged or missing rows.",
            )
        if array.dtype == object and name != "label":
            raise DataError(
                "Arrays must be rectangular and of one type.",
                got=f"{name} is an array of objects",
                fix="Check for ragged rows.",
            )
        if array.dtype.kind not in "biufOSU":
            raise DataError(
                "Arrays hold numbers, text or truth values.",
                got=f"{name} of {array.dtype}",
                fix="Write dates and the like as numbers.",
            )
        check_finite(name, array, columns)

    def __len__(self) -> int:
        return len(self.label)

    def take(self, index: np.ndarray) -> Rows:
        """Return the rows at these positions."""
        return dataclasses.replace(
            self,
            inputs={name: array[index] for name, array in self.inputs.items()},
            label=self.label[index],
            sample_weight=None if self.sample_weight is None else self.sample_weight[index],
            part=None if self.part is None else self.part[index],
        )

    def head(self, count: int) -> Rows:
        """Return the first so many rows."""
        import numpy as np

        return self.take(np.arange(min(count, len(self))))

    def sample(self) -> Rows:
        """Return what fits in memory: all of it."""
        return self

    def pieces(self, most: int | None = None) -> Iterator[Rows]:
        """Yield all rows at once: they are in memory. `most` is for streams."""
        yield self

    def digest(self) -> str:
        """Return the sha256 (hex) of names, types, shapes and values."""
        import numpy as np

        sha = hashlib.sha256(self.origin.encode())
        inputs = {f"input {name}": self.inputs[name] for name in sorted(self.inputs)}
        arrays = {**inputs, "label": self.label, "sample_weight": self.sample_weight}
        for name, array in arrays.items():
            if array is None:
                continue
            if array.dtype.kind in "OU":
                array = np.char.encode(array.astype(str), "utf-8")
            sha.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class Data:
    """Rows to train, validate and test on; `validation` and `test` may be absent.

    Attributes:
        train, validation, test: the rows.
        files: the files that they were read from, each with what tells a changed one (see `files.stamps`).
        notes: sentences about the rows for whoever runs on them; not part of the digest.
    """

    train: Rows | Stream
    validation: Rows | Stream | None = None
    test: Rows | Stream | None = None
    files: Mapping[str, Stamp] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return the sha256 (hex) of the three parts."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        parts = [part.digest() if part is not None else "-" for part in (self.train, self.validation, self.test)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @functools.cached_property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        parts = [part for part in (self.train, self.validation, self.test) if part is not None]
        return any(part.head(1).sample_weight is not None for part in parts)

    def changed(self) -> bool:
        """Return whether rows that are read anew for every pass have changed on disk since they were first read."""
        from ortpipe.data.files import stamp

        if all(isinstance(part, Rows | None) for part in (self.train, self.validation, self.test)):
            return False
        return any(stamp(file) != known for file, known in self.files.items())


def check_data(data: object) -> None:
    """Refuse what is no `Data`, such as rows that were not split, before a stage reads its parts.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(data, Data):
        raise DataError(
            "A stage reads rows that are split into parts: a Data.",
            got=type(data).__name__,
            fix="Give data=split(Rows(X, y), SplitConfig(test=0.25)), or Data(train=Rows(X, y)).",
        )


def joined(pieces: Sequence[Rows]) -> Rows:
    """Return pieces of the same source as one."""
    import numpy as np

    first = pieces[0]
    if len(pieces) == 1:
        return first
    inputs = {name: np.concatenate([piece.inputs[name] for piece in pieces]) for name in first.inputs}
    label = np.concatenate([piece.label for piece in pieces])
    weights = [piece.sample_weight for piece in pieces if piece.sample_weight is not None]
    parts = [piece.part for piece in pieces if piece.part is not None]
    return dataclasses.replace(
        first,
        inputs=inputs,
        label=label,
        sample_weight=np.concatenate(weights) if weights else None,
        part=np.concatenate(parts) if parts else None,
    )


def check_finite(name: str, array: np.ndarray, columns: Sequence[str] = (), first: int = 0) -> None:
    """Refuse nan and infinity in an array of floats whose first row has this number, naming the place."""
    import numpy as np

    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    place = np.argwhere(~np.isfinite(array))[0]
    column = ""
    if array.ndim > 1:
        known = array.ndim == 2 and len(columns) == array.shape[1]
        column = f", column {columns[place[1]]!r}" if known else f", column {place[1]}"
    raise DataError(
        "Data must be finite.",
        got=f"{array[tuple(place)]} in {name}, row {first + place[0]}{column}",
        fix="Drop or impute such rows before training.",
    )
