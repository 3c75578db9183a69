"""Integers that float32, the input dtype of most models, cannot represent."""

import numpy as np

from ortpipe.data.groups import Position, by_row
from ortpipe.data.row_checks import named
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows
from ortpipe.data.split import EXACT

LISTED = 12


def lost_digits(rows: RowSet) -> tuple[str, ...]:
    """Return sentences about the columns that lose digits in float32."""
    digits = LostDigits()
    for piece in rows.read():
        digits.update_rows(piece)
    return tuple(digits.notes())


class LostDigits:
    """Finds the columns that lose digits in float32."""

    def __init__(self) -> None:
        self._first_loss: dict[
            str, tuple[Position, int, int]
        ] = {}  # column → the first row that loses digits, its value
        self._fractional: set[str] = set()  # columns with fractions, which everyone expects to be rounded

    def update(self, name: str, array: np.ndarray, position: Position) -> None:
        """Look at more values [N] of a column."""
        if _fits_float32(array.dtype) or not len(array):
            return
        if array.dtype.kind == "f" and name not in self._fractional and (array != np.trunc(array)).any():
            self._fractional.add(name)
            self._first_loss.pop(name, None)
        if name in self._fractional or name in self._first_loss or _largest(array) <= EXACT:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            lost = array.astype(np.float32).astype(array.dtype) != array
        if lost.any():
            row = int(np.argmax(lost))
            self._first_loss[name] = position, row, int(array[row])

    def update_rows(self, rows: Rows, position: Position | None = None) -> None:
        """Look at the inputs, labels and weights of rows."""
        for name, array, columns in named(rows):
            if _fits_float32(array.dtype) or _largest(array) <= EXACT:
                continue  # the common case costs no copy
            flat = array.reshape(len(array), -1)
            for place in range(flat.shape[1]):
                column = f", column {columns[place] if place < len(columns) else place}" if flat.shape[1] > 1 else ""
                self.update(f"{name}{column}", flat[:, place], position or by_row())

    def notes(self) -> list[str]:
        """Return a sentence for each of the first LISTED columns that lose digits."""
        notes = [
            f"{name}, {position(row)}: {value} becomes {_in_float32(value)}"
            for name, (position, row, value) in self._first_loss.items()
        ]
        more = len(notes) - LISTED
        return [*notes[:LISTED], *([f"{more:,} more columns lose digits in float32"] if more > 0 else [])]


def _fits_float32(dtype: np.dtype) -> bool:
    """Return whether float32 represents every number of a dtype, or the dtype is not numeric."""
    return dtype.kind not in "iuf" or dtype.itemsize < 4 or dtype == np.float32


def _in_float32(value: int) -> str:
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if np.isinf(rounded):
        return "infinite in float32, whose maximum is 3.4e38: scale the column"
    return f"{int(rounded)} in float32, which is exact only for integers up to 2^24"


def _largest(array: np.ndarray) -> float:
    """Return max |x|, as a Python number because −x overflows in an unsigned dtype."""
    return max(array.max(initial=0).item(), -array.min(initial=0).item())
