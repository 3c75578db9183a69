"""Example rows of training in the run's folder, which the logged MLflow model is tested on."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortpipe.bounded import check_size, file_below
from ortpipe.data import npz_arrays
from ortpipe.files import atomic_write

EXAMPLE = "example.npz"
MOST_BYTES = 2**20  # bytes


def write_example(rows: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write rows of numbers, only the first if they are large; text is not written: a table's model makes up a row."""
    rows = {name: np.asarray(array) for name, array in rows.items()}
    if sum(array.nbytes for array in rows.values()) > MOST_BYTES:
        rows = {name: array[:1] for name, array in rows.items()}
    fits = sum(array.nbytes for array in rows.values()) <= MOST_BYTES
    if not rows or not fits or any(array.dtype.kind not in "biuf" for array in rows.values()):
        return
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **rows)
    atomic_write(folder / EXAMPLE, buffer.getvalue())


def read_example(folder: Path) -> dict[str, np.ndarray]:
    """Return the example rows of a folder, or no rows if the file is missing or damaged."""
    try:
        file = file_below(folder, EXAMPLE)
        check_size(file.stat().st_size, 2 * MOST_BYTES)
        return {name: array[:] for name, array in npz_arrays(file).items()}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, IndexError):
        return {}
