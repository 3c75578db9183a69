"""What a user must know of the rows: which columns became inputs, and whole numbers that float32 does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.rows import Category, Rows

if TYPE_CHECKING:
    from ortpipe.data.layout import Layout

EXACT = 2**24  # whole numbers up to here are exact in float32
MANY_INPUTS, MANY_OF_ONE = 1000, 100  # beyond these, a user has surely not meant so many
LISTED = 12


def inputs_of(layout: Layout, categories: Mapping[str, tuple[Category, ...]]) -> list[str]:
    """Return how many inputs came from which columns, and a warning where they are surely too many."""
    notes = []
    for name, columns in layout.inputs.items():
        one_hot = layout.source.encode_of(name) == "one_hot"
        widths = {column: len(categories[column]) if one_hot and column in categories else 1 for column in columns}
        total, widest = sum(widths.values()), sorted(widths, key=lambda column: -widths[column])
        shown = [column if widths[column] == 1 else f"{column} {widths[column]}" for column in widest[:LISTED]]
        more = [f"{len(widest) - LISTED:,} more"] if len(widest) > LISTED else []
        whose = f"{name}: " if len(layout.inputs) > 1 else ""
        notes.append(
            f"{whose}{_count(total, 'input')} from {_count(len(widths), 'column')}: {', '.join(shown + more)}; "
            f"label {', '.join(layout.labels)}"
        )
        if widths[widest[0]] > MANY_OF_ONE or total > MANY_INPUTS:
            notes.append(
                f"warning: {whose}{total:,} inputs, {widths[widest[0]]:,} of them from column {widest[0]!r}: choose "
                "columns with data.source.inputs, or read values as their places with data.source.encode=index"
            )
        if places := [column for column in columns if column in categories and not one_hot]:
            notes.append(
                f"{whose}{', '.join(places[:LISTED])}: each value is its place in sorted order (encode=index), which "
                "is right for a model that looks it up; one that multiplies it takes it for an amount"
            )
    return notes


def numbers_as_words(column: str) -> str:
    """Return what is said of a column of numbers whose type is text."""
    return f"column {column!r} is of text and holds numbers alone: each is read as a word; write them as numbers if not"


class Digits:
    """Finds whole numbers that float32, which most models read, does not hold."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._measured: set[str] = set()  # columns with fractions: they are rounded, as everyone expects

    def see(self, name: str, array: np.ndarray, first: int = 0, of: str = "") -> None:
        """Take more values [N] of a column; the first has this row number."""
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
            value = int(array[row])
            self._found[name] = f"{name}, row {first + row}{of}: {value} becomes {int(np.float32(value))}"

    def see_rows(self, rows: Rows, first: int = 0, of: str = "") -> None:
        """Take the inputs, labels and weights of rows."""
        label = {} if rows.label.dtype.kind in "OSU" else {"label": rows.label}
        weight = {} if rows.sample_weight is None else {"sample_weight": rows.sample_weight}
        for name, array in {**{f"input {n!r}": a for n, a in rows.inputs.items()}, **label, **weight}.items():
            if _fits_float32(array.dtype) or _largest(array) <= EXACT:
                continue  # the common case costs no copy
            flat = array.reshape(len(array), -1)
            named = rows.columns.get(name[7:-1], ())
            for at in range(flat.shape[1]):
                column = f", column {named[at] if at < len(named) else at}" if flat.shape[1] > 1 else ""
                self.see(f"{name}{column}", flat[:, at], first, of)

    def notes(self) -> list[str]:
        """Return a sentence for each column that loses digits, the first few of them."""
        notes = [f"{found} in float32, which holds whole numbers up to 2^24 exactly" for found in self._found.values()]
        more = len(notes) - LISTED
        return [*notes[:LISTED], *([f"{more:,} more columns lose digits in float32"] if more > 0 else [])]


def _fits_float32(dtype: np.dtype) -> bool:
    """Say whether float32 holds every number of a type, or the type is none of numbers."""
    return dtype.kind not in "iuf" or dtype.itemsize < 4 or dtype == np.float32


def _largest(array: np.ndarray) -> float:
    """Return max |x|; as Python's numbers, for −x has no place in an unsigned type."""
    return max(array.max(initial=0).item(), -array.min(initial=0).item())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
