"""Rows: inputs by name, labels, weights; checked when made, split by a seed, told apart by a digest."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from ortpipe.data.config import DataConfig, SplitConfig


@dataclass(frozen=True)
class Rows:
    """Aligned arrays, one entry per row.

    Attributes:
        inputs: model input name → array [N, …]; one input alone fits a model's only input under any name.
        label: [N] or [N, K]; classes as the user writes them (numbers or strings).
        sample_weight: [N], or None where every row counts once.
        columns: the names of a 2-D input's columns, for messages.

    Raises:
        DataError: ragged, empty or misaligned arrays, nan or infinite values.
    """

    inputs: Mapping[str, np.ndarray]
    label: np.ndarray
    sample_weight: np.ndarray | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.inputs:
            raise DataError("Data must hold at least one input.", got="none", fix="Add an array of features.")
        if self.label.ndim == 0 or not len(self.label):
            raise DataError(
                "Data must hold at least one row.", got=f"labels of shape {self.label.shape}", fix="Give rows."
            )
        named = {**{f"input {k!r}": v for k, v in self.inputs.items()}, "label": self.label}
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
            named["sample_weight"] = self.sample_weight
        for name, array in named.items():
            self._check(name, array)
        if self.sample_weight is not None and (self.sample_weight < 0).any():
            raise DataError(
                "Row weights are not negative.",
                got=self.sample_weight.min(),
                fix="Choose another weight column.",
            )

    def _check(self, name: str, array: np.ndarray) -> None:
        import numpy as np

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
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            place = np.argwhere(~np.isfinite(array))[0]
            column = ""
            if array.ndim > 1:
                known = array.ndim == 2 and len(self.columns) == array.shape[1]
                column = f", column {self.columns[place[1]]!r}" if known else f", column {place[1]}"
            raise DataError(
                "Data must be finite.",
                got=f"{array[tuple(place)]} in {name}, row {place[0]}{column}",
                fix="Drop or impute such rows before training.",
            )

    def __len__(self) -> int:
        return len(self.label)

    def take(self, index: np.ndarray) -> Rows:
        """Return the rows at these positions."""
        return dataclasses.replace(
            self,
            inputs={name: array[index] for name, array in self.inputs.items()},
            label=self.label[index],
            sample_weight=None if self.sample_weight is None else self.sample_weight[index],
        )

    def digest(self) -> str:
        """Return the sha256 (hex) of names, types, shapes and values."""
        import numpy as np

        sha = hashlib.sha256()
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
    """Rows to train, validate and test on; `validation` and `test` may be absent."""

    train: Rows
    validation: Rows | None = None
    test: Rows | None = None

    def digest(self) -> str:
        """Return the sha256 (hex) of the three parts."""
        parts = [part.digest() if part is not None else "-" for part in (self.train, self.validation, self.test)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def split(rows: Rows, config: SplitConfig) -> Data:
    """Divide rows by scikit-learn's `train_test_split`, seeded: test first, then validation.

    Raises:
        DataError: a part would be empty, or a class has too few rows to stratify.
    """
    import numpy as np
    from sklearn.model_selection import train_test_split

    index = np.arange(len(rows))
    parts: dict[str, Rows | None] = {"test": None, "validation": None}
    for name, fraction in (("test", config.test), ("validation", config.validation)):
        count = round(fraction * len(rows))
        if fraction == 0:
            continue
        if not 0 < count < len(index):
            raise DataError(
                "Every part of the split must have rows.",
                got=f"split.{name}={fraction} of {len(rows)} rows",
                fix="Choose larger fractions or give more rows.",
            )
        try:
            index, taken = train_test_split(
                index,
                test_size=count,
                random_state=config.seed,
                stratify=rows.label[index] if config.stratify else None,
            )
        except ValueError as error:
            raise DataError(
                "A stratified split needs rows of every class in every part.",
                got=error,
                fix="Set data.split.stratify=false.",
            ) from error
        parts[name] = rows.take(taken)
    return Data(train=rows.take(index), **parts)


def load(config: DataConfig) -> Data:
    """Read a source and split its rows."""
    return split(config.source(), config.split)
