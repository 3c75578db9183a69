"""Reading tables again and again: one pass that checks them and learns their categories, then rows in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.arrow import as_numpy, is_text, places, plain
from ortpipe.data.config import PARTS, check_parts
from ortpipe.data.float32 import LostDigits
from ortpipe.data.layout import lay_out, raw_column_notes
from ortpipe.data.position import Position, by_row, offset_position
from ortpipe.data.prefetch import prefetch
from ortpipe.data.raw_columns import RawColumnReader
from ortpipe.data.reader import Labelled
from ortpipe.data.rows import PIECE, Category, Rows, row_bytes
from ortpipe.data.stream import Labels
from ortpipe.data.table import TableSource
from ortpipe.data.text_columns import TextColumn, reject_text
from ortpipe.errors import DataError
from ortpipe.hashing import Hasher

if TYPE_CHECKING:
    import pyarrow as pa

CACHED = 256  # rows that are turned at a time
MANY = 10_000  # values of a column, beyond which one column each is surely not meant


@dataclass(frozen=True)
class Group:
    """Rows of a table that are read in one go, in pieces."""

    file: str  # what to call it in messages
    part: int | None  # of all of its rows, as a place in `PARTS`; None where files do not say it
    read: Callable[[list[str], int], Iterator[pa.RecordBatch]]  # these columns, in tables of at most so many rows
    position: Position  # of its rows, in messages
    follows: bool = False  # it goes on with the rows of the one before: how a table is cut is no content


def group_of(table: pa.Table, name: str, part: int | None = None, position: Position | None = None) -> Group:
    """Return a table in memory as a group."""
    read = lambda columns, most: iter(table.select(columns).to_batches(most))  # noqa: E731
    return Group(name, part, read, position or by_row(name))


class TableReader:
    """Rows of the groups of a table (see `Reader`): one pass reads, checks and counts all of them.

    It refuses a value that is missing, not finite or no number among numbers by file, row and column, and a column of
    too many values. The column `part` says which part a row is in.
    """

    def __init__(
        self, source: TableSource, schemas: Mapping[str, pa.Schema], groups: Sequence[Group], part: str | None
    ) -> None:
        self._groups = groups
        self.layout = layout = lay_out(source, schemas, part)
        raw = layout.raw
        self._plain_numbers = {name: dtype for name, dtype in layout.dtypes.items() if name not in raw}
        hasher, self._digits = Hasher("table").add(layout.key), LostDigits()
        labels = {head: Labels() for head in ("", *source.heads)}
        features = dict.fromkeys(c for name, names in layout.inputs.items() if not layout.is_kept(name) for c in names)
        self._values: dict[str, set[Category]] = {name: set() for name in features if name not in layout.dtypes}
        columns = [names[0] for name, names in layout.inputs.items() if layout.is_kept(name)]
        self._kept = {name: RawColumnReader(name, layout.dtypes.get(name), source.missing) for name in columns}
        texts = [name for name in (*self._values, *layout.raw, *source.labels) if name not in source.categorical]
        self._texts = {name: TextColumn(name, kept=name in layout.raw) for name in texts}
        self.counts = np.zeros((len(groups), len(PARTS)), np.int64)
        size = max(1, PIECE // (sum(dtype.itemsize for dtype in layout.dtypes.values()) or 8))
        first = 0
        for number, table in prefetch(self._tables(size)):
            group = groups[number]
            if table is None:
                hasher.add(*([] if group.follows else ["group", group.part]))
                first = 0
                continue
            position = offset_position(group.position, first)
            for name in layout.used:
                if not self._learn_numbers(table, name, hasher, position):
                    self._learn(table, name, hasher, group.file, position)
            self.counts[number] += self._count_parts(table, group, position)
            for head, seen in labels.items():
                seen.see(layout.label(table, head))
            first += table.num_rows
        if not self.counts.sum():
            files = ", ".join(dict.fromkeys(group.file for group in groups))
            raise DataError("Data must hold at least one row.", got=f"none in {files}", fix="Give rows.")
        for text in self._texts.values():
            text.refuse()
        for name in self._values:
            self._check_value_count(name)
        dates = {name for name, text in self._texts.items() if text.are_dates}
        self._kept_as = {
            name: self._kept[columns[0]].kept(are_dates=columns[0] in dates)
            for name, columns in layout.inputs.items()
            if layout.is_kept(name)
        }
        self._categories = {name: tuple(sorted(values)) for name, values in self._values.items()}
        self._columns = {
            name: tuple(
                column_name
                for column, values in layout.blocks(name, self._categories)
                for column_name in ([f"{column}={value}" for value in values] or [column])
            )
            for name in layout.inputs
        }
        self.row_bytes = row_bytes((layout.dtype(name), (1, len(names))) for name, names in self._columns.items())
        self.digest, self.labels = hasher.hexdigest(), {head: seen.values for head, seen in labels.items()}
        inputs = dict.fromkeys((*self._values, *self._kept))
        of_texts = [note for name in inputs if name in self._texts for note in self._texts[name].notes]
        twins = (self._texts[name].twins for name in source.labels if name in self._texts)
        of_texts += [note for note in twins if note is not None]
        of_inputs = [*layout.notes(self._categories), *raw_column_notes(self._kept_as, source.labels)]
        self.notes = (*of_inputs, *of_texts, *self._digits.notes())

    def _tables(self, most: int) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Yield every group's number, and behind it its rows, in tables of at most so many."""
        for number, group in enumerate(self._groups):
            yield number, None
            for table in group.read(self.layout.used, most):
                yield number, table

    def pieces(self, group: int) -> Iterator[Rows]:
        """Yield a group's rows in pieces of bounded size."""
        chosen = self._groups[group]
        for table in chosen.read(self.layout.used, max(1, PIECE // self.row_bytes)):
            if table.num_rows:
                yield self._rows(table, chosen.part)

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield a group's labels, from the columns of labels and of parts alone."""
        chosen, layout = self._groups[group], self.layout
        columns = list(dict.fromkeys(filter(None, (*layout.source.labels, layout.part))))
        for table in chosen.read(columns, max(1, PIECE // self.row_bytes)):
            labels = {head: layout.label(table, head) for head in ("", *layout.source.heads)}
            yield labels, self._part(table, chosen.part)

    def _part(self, table: pa.RecordBatch, part: int | None) -> np.ndarray | None:
        """Return the part of each row, as the group says, or a column."""
        if self.layout.part is not None:
            return _codes(table.column(self.layout.part), PARTS).astype(np.int8)
        return None if part is None else np.full(table.num_rows, part, np.int8)

    def _rows(self, table: pa.RecordBatch, part: int | None) -> Rows:
        """Return a table as rows, all of them in a part if one is given."""
        layout, inputs = self.layout, {}
        for name, columns in self._columns.items():
            if layout.is_kept(name):
                [column] = columns
                inputs[name] = self._kept[column].read(layout.column(table, column))
                continue
            if all(column in layout.dtypes for column in columns):
                inputs[name] = _stack_columns([layout.numbers(table, column) for column in columns], layout.dtype(name))
                continue
            inputs[name] = array = np.zeros((table.num_rows, len(columns)), layout.dtype(name))
            at = 0
            for column, values in layout.blocks(name, self._categories):
                if column in layout.dtypes:
                    array[:, at] = layout.numbers(table, column)
                elif values:
                    codes = _codes(layout.column(table, column), values)
                    array[np.arange(len(array)), at + codes] = 1
                else:
                    array[:, at] = _codes(layout.column(table, column), self._categories[column])
                at += len(values) or 1
        weight = layout.source.sample_weight
        return Rows(
            inputs=inputs,
            label=layout.label(table),
            heads={head: layout.label(table, head) for head in layout.source.heads},
            sample_weight=None if weight is None else layout.numbers(table, weight),
            columns={name: columns for name, columns in self._columns.items() if not layout.is_kept(name)},
            categories=self._categories,
            kept=self._kept_as,
            part=self._part(table, part),
        )

    def _learn_numbers(self, table: pa.RecordBatch, name: str, hasher: Hasher, position: Position) -> bool:
        """Do as `_learn` does of a column of finite numbers; return whether it is one. A table may have thousands."""
        dtype = self._plain_numbers.get(name)
        if dtype is None or (column := table.column(name)).null_count:
            return False
        numbers = as_numpy(column)
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            return False
        self._digits.see(f"column {name!r}", numbers, position)
        hasher.add(name, numbers.astype(dtype, copy=False))
        return True

    def _learn(self, table: pa.RecordBatch, name: str, hasher: Hasher, file: str, position: Position) -> None:
        """Check a column, and take its content into the digest, and its values where it has categories."""
        import pyarrow as pa

        layout, column, source = self.layout, self.layout.column(table, name), self.layout.source
        raw, seen = name in layout.raw, self._texts.get(name) if is_text(table.column(name).type) else None
        _check_missing(column, name, position, source, raw=raw)
        kept = self._kept[name].see(column, file) if name in self._kept else []
        if name in layout.dtypes:
            numbers = as_numpy(column)
            self._digits.see(f"column {name!r}", np.nan_to_num(numbers) if raw else numbers, position)
            hasher.add(name, *(kept if raw else [numbers.astype(layout.dtypes[name], copy=False)]))
            return
        if raw:
            hasher.add(name, *kept)
            if seen is not None:
                words, codes = kept
                seen.see(pa.array(words), codes, position)
            return
        if name == source.sample_weight or name in source.numeric_labels:
            reject_text(column, name, position)
        encoded = column.dictionary_encode()
        words, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        if seen is not None:
            seen.see(encoded.dictionary, codes, position)
        hasher.add(name, words, codes)
        if name in self._values:
            if len(self._values[name]) <= MANY or not layout.one_hot(name):
                self._values[name].update(words)
            if name not in self._texts or not self._texts[name].mostly_numbers:  # those are refused for another reason
                self._check_value_count(name)

    def _check_value_count(self, name: str) -> None:
        if len(self._values[name]) > MANY and self.layout.one_hot(name):
            raise DataError(
                f"A column of text becomes at most {MANY} columns of 0 and 1.",
                got=f"more values in column {name!r}",
                fix="Set {at}encode=index for an input that looks values up, or leave the column out.",
            )

    def _count_parts(self, table: pa.RecordBatch, group: Group, position: Position) -> np.ndarray:
        """Return how many rows of a table are in each part."""
        if self.layout.part is None:
            return np.bincount([group.part or 0], [table.num_rows], len(PARTS)).astype(np.int64)
        words = plain(table.column(self.layout.part)).cast("string")
        codes = places(words, PARTS)
        check_parts(codes, words, self.layout.part, position)
        return np.bincount(codes, minlength=len(PARTS))


def _stack_columns(columns: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return columns [N] as one array [N, columns], by as many rows at a time as stay in the processor's cache."""
    together, array = np.stack(columns, dtype=dtype, casting="unsafe"), np.empty((len(columns[0]), len(columns)), dtype)
    for first in range(0, len(array), CACHED):
        array[first : first + CACHED] = together[:, first : first + CACHED].T
    return array


def _codes(column: pa.Array, values: Sequence[Category]) -> np.ndarray:
    """Return each value's place among the values that a column had when it was first read."""
    codes = places(column, values)
    if (codes < 0).any():
        raise DataError(
            "A column holds the values that it had when it was first read.",
            got=f"another value than {', '.join(map(repr, values[:5]))} …",
            fix="Start again, and leave the files as they are meanwhile.",
        )
    return codes


def _check_missing(column: pa.Array, name: str, position: Position, source: TableSource, *, raw: bool) -> None:
    """Refuse missing values (an empty text is one, and what the user calls so) and numbers that are not finite.

    Of a column that is read as it stands (`raw`) values may be missing.
    """
    wrong = np.zeros(0, bool)
    if str(column.type) in ("halffloat", "float", "double"):
        wrong = np.isinf(as_numpy(column)) if raw else ~np.isfinite(as_numpy(column))
    elif is_text(column.type) and not raw:
        wrong = places(column, [None, "", *source.missing]) >= 0
    elif column.null_count and not raw:
        wrong = column.is_null().to_numpy(zero_copy_only=False)
    if wrong.any():
        row = int(np.argmax(wrong))
        value = column[row].as_py()
        infinite = isinstance(value, float)
        shown = repr(value) if value and not infinite else value or "nothing"
        fix = "Drop or correct such rows before training"
        if name not in (*source.labels, source.sample_weight):
            fix += ", or leave the column out of {at}inputs"
            gap = not infinite or np.isnan(value)
            fix += "; with {at}encode=keep a network, or a Pipeline that imputes, takes gaps as they are" if gap else ""
        raise DataError(
            "Data must be finite." if infinite else "Data must have a value in every row of the columns that are read.",
            got=f"{shown} in column {name!r}, {position(row)}",
            fix=f"{fix}.",
        )
