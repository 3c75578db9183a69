"""Whole numbers that float32, which most models read, does not hold."""

import numpy as np

from ortpipe.data.position import Position, by_row
from ortpipe.data.rows import Rows

EXACT = 2**24  # whole numbers up to here are exact in float32
LISTED = 12


class LostDigits:
    """Finds the columns that lose digits."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Position, int, int]] = {}  # column → row and value, the first that loses digits
        self._measured: set[str] = set()  # columns with fractions: they are rounded, as everyone expects

    def see(self, name: str, array: np.ndarray, position: Position) -> None:
        """Take more values [N] of a column."""
        if _fits_float32(array.dtype) or not len(array):
            return
        if array.dtype.kind == "f" and name not in self._measured and (array != np.trunc(array)).any():
            self._measured.add(name)
            self._found.pop(name, None)
        if name in self._measured or name in self._found or _largest(array) <= EXACT:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            lost = array.astype(np.float32).astype(array.dtype) != array
        if lost.any():
            row = int(np.argmax(lost))
            self._found[name] = position, row, int(array[row])

    def see_rows(self, rows: Rows, position: Position | None = None) -> None:
        """Take the inputs, labels and weights of rows."""
        for name, array, columns in rows.named():
            if _fits_float32(array.dtype) or _largest(array) <= EXACT:
                continue  # the common case costs no copy
            flat = array.reshape(len(array), -1)
            for at in range(flat.shape[1]):
                column = f", column {columns[at] if at < len(columns) else at}" if flat.shape[1] > 1 else ""
                self.see(f"{name}{column}", flat[:, at], position or by_row())

    def notes(self) -> list[str]:
        """Return a sentence for each column that loses digits, the first few of them."""
        notes = [
            f"{name}, {position(row)}: {value} becomes {_in_float32(value)}"
            for name, (position, row, value) in self._found.items()
        ]
        more = len(notes) - LISTED
        return [*notes[:LISTED], *([f"{more:,} more columns lose digits in float32"] if more > 0 else [])]


def _fits_float32(dtype: np.dtype) -> bool:
    """Say whether float32 holds every number of a type, or the type is none of numbers."""
    return dtype.kind not in "iuf" or dtype.itemsize < 4 or dtype == np.float32


def _in_float32(value: int) -> str:
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if np.isinf(rounded):
        return "infinite in float32, which ends at 3.4e38: scale the column"
    return f"{int(rounded)} in float32, which holds whole numbers up to 2^24 exactly"


def _largest(array: np.ndarray) -> float:
    """Return max |x|; as Python's numbers, for −x has no place in an unsigned type."""
    return max(array.max(initial=0).item(), -array.min(initial=0).item())
