"""Reading tables again and again: one pass that checks them and learns their categories, then rows in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.arrow import as_numpy, is_text, places, plain
from ortpipe.data.columns import Layout, notes_of_inputs
from ortpipe.data.config import PARTS
from ortpipe.data.float32 import LostDigits
from ortpipe.data.rows import PIECE, Category, Rows
from ortpipe.data.stream import Labels
from ortpipe.data.text_columns import TextColumn, refuse_text
from ortpipe.errors import DataError, nearest
from ortpipe.hashing import Hasher

if TYPE_CHECKING:
    import pyarrow as pa

MANY = 10_000  # values of a column, beyond which one column each is surely not meant


@dataclass(frozen=True)
class Group:
    """Rows of a table that are read in one go, in pieces.

    Attributes:
        file: what to call it in messages.
        first: the number of its first row in the file.
        part: of all of its rows, as a place in `PARTS`; None where files do not say it.
        read: gives its tables of at most so many rows.
    """

    file: str
    first: int
    part: int | None
    read: Callable[[int], Iterator[pa.RecordBatch]]


class TableReader:
    """Rows of the groups of a table.

    Attributes:
        counts: rows of each group by part, int [groups, 3].
        row_bytes: bytes of one row as arrays.
        digest: sha256 (hex) of the columns that are read.
        labels: the distinct labels.
        notes: which columns became which inputs, and what is lost of their numbers.

    Raises:
        DataError: a value is missing, not finite or no number among numbers, or a column has too many values; it
            names file, row and column.
    """

    def __init__(self, layout: Layout, groups: Sequence[Group]) -> None:
        self._layout, self._groups = layout, groups
        hasher, labels = Hasher("table").add(layout.key), Labels()
        values: dict[str, set[Category]] = {name: set() for name in layout.encoded}
        words = [*layout.encoded, *layout.source.labels]
        self._texts = {name: TextColumn(name) for name in words if name not in layout.source.categorical}
        digits = LostDigits()
        width = sum(dtype.itemsize for dtype in layout.dtypes.values()) or 8
        self.counts = np.zeros((len(groups), len(PARTS)), np.int64)
        for number, group in enumerate(groups):
            first = group.first
            hasher.add("group", group.part)
            for table in group.read(max(1, PIECE // width)):
                for name in layout.used:
                    column = layout.column(table, name)
                    _check(column, name, group.file, first, layout.source.missing)
                    if name in layout.dtypes:
                        digits.see(f"column {name!r}", as_numpy(column), first, f" of {group.file}")
                    elif name in layout.numeric:
                        refuse_text(column, name, group.file, first)
                    elif name in self._texts and is_text(table.column(name).type):
                        encoded = column.dictionary_encode()
                        self._texts[name].see(encoded.dictionary, encoded.indices.to_numpy(), group.file, first)
                    self._learn(column, name, hasher, values)
                self.counts[number] += self._parts(table, group, first)
                labels.see(layout.label(table))
                first += table.num_rows
        if not self.counts.sum():
            files = ", ".join(dict.fromkeys(group.file for group in groups))
            raise DataError("Data must hold at least one row.", got=f"none in {files}", fix="Give rows.")
        self.digest, self.labels = hasher.hexdigest(), labels.values
        for text in self._texts.values():
            text.refuse()
        for name, found in values.items():
            self._refuse_many(name, found)
        self._categories = {name: tuple(sorted(found)) for name, found in values.items()}
        self.row_bytes = layout.row_bytes(self._categories)
        texts = (self._texts[name] for name in layout.encoded if name in self._texts)
        of_texts = (note for text in texts for note in text.notes)
        self.notes = (*notes_of_inputs(layout, self._categories), *of_texts, *digits.notes())

    def pieces(self, group: int) -> Iterator[Rows]:
        """Yield a group's rows in pieces of bounded size."""
        chosen = self._groups[group]
        for table in chosen.read(max(1, PIECE // self.row_bytes)):
            if table.num_rows:
                yield self._layout.rows(table, self._categories, chosen.part)

    def _learn(self, column: pa.Array, name: str, hasher: Hasher, values: Mapping[str, set[Category]]) -> None:
        """Take a column's content into the digest, and its values where it has categories."""
        if name in self._layout.dtypes:
            hasher.add(name, as_numpy(column).astype(self._layout.dtypes[name], copy=False))
            return
        encoded = column.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        hasher.add(name, words, encoded.indices.to_numpy())
        if name in values:
            if len(values[name]) <= MANY or not self._layout.one_hot(name):
                values[name].update(words)
            if name not in self._texts or not self._texts[name].mostly_numbers:  # those are refused for another reason
                self._refuse_many(name, values[name])

    def _refuse_many(self, name: str, values: set[Category]) -> None:
        if len(values) > MANY and self._layout.one_hot(name):
            raise DataError(
                f"A column of text becomes at most {MANY} columns of 0 and 1.",
                got=f"more values in column {name!r}",
                fix="Set data.source.encode=index for an input that looks values up, or leave the column out.",
            )

    def _parts(self, table: pa.RecordBatch, group: Group, first: int) -> np.ndarray:
        """Return how many rows of a table are in each part."""
        if self._layout.part is None:
            return np.bincount([group.part or 0], [table.num_rows], len(PARTS)).astype(np.int64)
        words = plain(table.column(self._layout.part)).cast("string")
        known = places(words, PARTS)
        if (known < 0).any():
            row = int(np.argmax(known < 0))
            raise DataError(
                "data.split.column holds the words train, validation and test.",
                got=f"{words[row].as_py()!r} in column {self._layout.part!r}, row {first + row} of {group.file}",
                fix=nearest(str(words[row].as_py()), PARTS),
            )
        return np.bincount(known, minlength=len(PARTS))


def _check(column: pa.Array, name: str, file: str, first: int, missing: Sequence[str]) -> None:
    """Refuse missing values (an empty text is one, and what the user calls so) and numbers that are not finite."""
    wrong = column.is_null().to_numpy(zero_copy_only=False)
    if str(column.type) in ("halffloat", "float", "double"):
        wrong = ~np.isfinite(as_numpy(column))
    elif is_text(column.type):
        wrong |= places(column, ["", *missing]) >= 0
    if wrong.any():
        row = int(np.argmax(wrong))
        value = column[row].as_py()
        infinite = isinstance(value, float)
        shown = repr(value) if value and not infinite else value or "nothing"
        raise DataError(
            "Data must be finite." if infinite else "Data must have a value in every row of the columns that are read.",
            got=f"{shown} in column {name!r}, row {first + row} of {file}",
            fix="Drop or impute such rows before training, or leave the column out of data.source.inputs.",
        )
