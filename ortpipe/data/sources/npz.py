"""Arrays in one NumPy .npz file."""

from __future__ import annotations

from dataclasses import dataclass

from ortpipe.data.rows import Rows
from ortpipe.errors import DataError, nearest


@dataclass(frozen=True)
class Npz:
    """An .npz file: `label` and `sample_weight` name their arrays, every other array is an input by its name.

    Attributes:
        path: the file.
        label: the array of labels, shape [N] or [N, K].
        sample_weight: the array of row weights, shape [N], or nothing.
    """

    path: str
    label: str = "y"
    sample_weight: str | None = None

    def __call__(self) -> Rows:
        """Read the arrays; pickled objects are refused."""
        import zipfile
        from pathlib import Path

        import numpy as np

        if not Path(self.path).is_file() or not zipfile.is_zipfile(self.path):
            found = "not a file" if not Path(self.path).is_file() else "not an archive of arrays"
            raise DataError(
                "data.source.path must be an .npz file of plain arrays.",
                got=f"{self.path}: {found}",
                fix="Check the path; write such a file with numpy.savez.",
            )
        try:
            with open(self.path, "rb") as file, np.load(file, allow_pickle=False) as loaded:
                arrays = dict(loaded)
        except Exception as error:
            raise DataError(
                "data.source.path must be an .npz file of plain arrays.",
                got=f"{self.path}: {error}",
                fix="Write it with numpy.savez.",
            ) from error
        for name in filter(None, (self.label, self.sample_weight)):
            if name not in arrays:
                raise DataError(
                    "The .npz file must hold every array that is named by data.source.label and sample_weight.",
                    got=repr(name),
                    fix=nearest(name, arrays),
                )
        inputs = {name: array for name, array in arrays.items() if name not in (self.label, self.sample_weight)}
        weight = arrays[self.sample_weight] if self.sample_weight else None
        return Rows(inputs=inputs, label=arrays[self.label], sample_weight=weight)
