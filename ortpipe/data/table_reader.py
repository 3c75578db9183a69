"""Reading tables: one pass checks them, later ones yield rows in pieces."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.data.arrow import as_numpy, is_text, places, plain_column
from ortpipe.data.faults import SHOWN, Faults, raise_all
from ortpipe.data.float32 import LostDigits
from ortpipe.data.groups import Group, Position, by_row, offset_position
from ortpipe.data.layout import lay_out, setting_errors, text_columns, with_known
from ortpipe.data.parts import PARTS, SplitConfig
from ortpipe.data.prefetch import prefetch
from ortpipe.data.raw_columns import RawColumn, RawColumnReader
from ortpipe.data.reader import PART_RULE, Labelled, check_parts
from ortpipe.data.rows import PIECE, Rows, row_bytes
from ortpipe.data.stream import Labels
from ortpipe.data.table import TableSource
from ortpipe.data.text_columns import TextColumn, add_text
from ortpipe.doors import later
from ortpipe.errors import DataError, nearest
from ortpipe.hashing import Hasher

if TYPE_CHECKING:
    import pyarrow as pa

    from ortpipe.data.cleaning import CopyOfLabel, identifying_columns, labeled_rows
    from ortpipe.data.written import as_written
else:
    later(__name__)

CACHED = 256  # rows that are transposed at a time


class TableReader:
    """Reads the rows of a table's groups (see `Reader`); the constructor reads, checks and counts all of them.

    It rejects missing and infinite values and text among numbers, by file, row and column, together with wrong columns
    and settings. The column of `split`, if any, names each row's part.
    """

    def __init__(
        self,
        source: TableSource,
        schemas: Mapping[str, pa.Schema],
        groups: Sequence[Group],
        split: SplitConfig | None,
    ) -> None:
        errors = setting_errors(source, schemas, split)
        source = with_known(source, schemas) if errors else source
        written = as_written(
            text_columns(source, schemas),
            schemas,
            groups,
            missing=source.missing,
            labels=source.labels,
            point=hasattr(source, "delimiter") and any("double" in map(str, s.types) for s in schemas.values()),
        )
        errors += written.errors
        schemas, dropped = written.schemas, 0
        groups = list(written.groups)
        unknown = {name for name in source.labels if not all(name in schema.names for schema in schemas.values())}
        if source.unlabeled == "drop" and not errors:
            groups, dropped = labeled_rows(groups, source.labels, source.missing)
        self._groups, self._schemas = groups, schemas
        part = split.column if split is not None and all(split.column in s.names for s in schemas.values()) else None
        ids = _identifiers(source, schemas, groups, {*written.records, part})
        self.layout = layout = lay_out(source, schemas, part, ids, {*unknown, *written.faulty}, errors)
        self._plain_numbers = {name: dtype for name, dtype in layout.dtypes.items() if name not in layout.raw}
        columns = [name for name in layout.inputs if layout.is_kept(name)]
        self._raw_readers = {name: RawColumnReader(name, layout.dtypes.get(name), source.missing) for name in columns}
        texts = [name for name in (*columns, *source.labels) if name not in source.words]
        self._texts = {name: TextColumn(name, raw=name in layout.raw) for name in texts}
        self._digits, self._copy = LostDigits(), None
        if isinstance(source.label, str) and not errors:
            self._copy = CopyOfLabel(source.label, layout.raw)
        self.counts = np.zeros((len(groups), len(PARTS)), np.int64)
        self.digest, self.labels = self._learn_all(errors)
        self._raw_columns = self._described(written.records)
        self._columns = {name: columns for name, columns in layout.inputs.items() if not layout.is_kept(name)}
        self.row_bytes = row_bytes((layout.dtype(name), (1, len(names))) for name, names in layout.inputs.items())
        self.notes = (*layout.notes(self._raw_columns), *written.notes(layout.used), *self._notes(ids, dropped))

    def _learn_all(self, errors: Sequence[DataError]) -> tuple[str, dict[str, np.ndarray | None]]:
        """Read, check and count all rows; return their digest, and the distinct labels of each head.

        Raises:
            DataError: the first of `errors` and of the faults of rows, with all others.
        """
        layout = self.layout
        hasher, faults, first = Hasher("table").add(layout.key), Faults(), 0
        labels = {head: Labels() for head in ("", *layout.source.heads)}
        size = max(1, PIECE // (sum(dtype.itemsize for dtype in layout.dtypes.values()) or 8))
        for number, table in prefetch(self._tables(range(len(self._groups)), size)):
            group = self._groups[number]
            if table is None:
                hasher.add(*([] if group.follows else ["group", group.part]))
                first = 0
                continue
            position = offset_position(group.position, first)
            for name in layout.used:
                if not self._learn_numbers(table, name, hasher, position):
                    self._learn(table, name, hasher, group.file, position, faults)
            self.counts[number] += self._count_parts(table, group, position, faults)
            for head, distinct in () if faults.found or errors else labels.items():
                distinct.update(layout.label(table, head))
            if self._copy is not None:
                self._copy.update(table)
            first += table.num_rows
        raise_all([*errors, *faults.errors(), *filter(None, (text.error() for text in self._texts.values()))])
        if not self.counts.sum():
            got = f"none in {', '.join(self._schemas)}"
            raise DataError("Data must hold at least one row.", got=got, fix="Give at least one row.")
        return hasher.hexdigest(), {head: distinct.values for head, distinct in labels.items()}

    def _described(self, records: Mapping[str, Any]) -> dict[str, RawColumn]:
        """Return the descriptions of the raw columns, with the records of how their values were written."""
        dates = {name for name, text in self._texts.items() if text.are_dates}
        summaries = {name: reader.summary(are_dates=name in dates) for name, reader in self._raw_readers.items()}
        return {name: dataclasses.replace(column, written=records.get(name)) for name, column in summaries.items()}

    def _notes(self, ids: Sequence[str], dropped: int) -> Iterator[str]:
        """Yield sentences about the columns and rows that are left out, and about values."""
        if ids:
            names = ", ".join(name or "''" for name in ids)
            yield f"left out, because they identify rows (data.source.identifiers): {names}"
        if dropped:
            yield f"{dropped:,} of {int(self.counts.sum()) + dropped:,} rows have no label and are left out"
        for name in self._raw_readers:
            yield from self._texts[name].notes if name in self._texts else ()
        variants = (self._texts[name].variants_note for name in self.layout.source.labels if name in self._texts)
        yield from filter(None, variants)
        yield from self._digits.notes()
        yield from self._copy.notes if self._copy else ()

    def _tables(self, groups: Iterable[int], most: int) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Yield each group's number with None, then with its rows in tables of at most `most` rows."""
        for number in groups:
            yield number, None
            for table in self._groups[number].read(self.layout.used, most):
                yield number, table

    def pieces(self, groups: Iterable[int]) -> Iterator[Iterator[Rows]]:
        """Yield the rows of each group in pieces of bounded size, which another thread decodes."""
        tables = prefetch(self._tables(groups, max(1, PIECE // self.row_bytes)))
        for number, of_group in itertools.groupby(tables, key=operator.itemgetter(0)):
            part = self._groups[number].part
            yield (self._rows(table, part) for _, table in of_group if table is not None and table.num_rows)

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield a group's labels and parts; only their columns are read."""
        file_group, layout = self._groups[group], self.layout
        columns = list(dict.fromkeys(filter(None, (*layout.source.labels, layout.part))))
        for table in file_group.read(columns, max(1, PIECE // self.row_bytes)):
            labels = {head: layout.label(table, head) for head in ("", *layout.source.heads)}
            yield labels, self._part(table, file_group.part)

    def _part(self, table: pa.RecordBatch, part: int | None) -> np.ndarray | None:
        """Return the part of each row, from the column of parts or the group; None if neither defines it."""
        if self.layout.part is not None:
            codes, name = self._part_codes(table), self.layout.part
            check_parts(codes, table.column(name), name, by_row())  # again: the file may have changed
            return codes.astype(np.int8)
        return None if part is None else np.full(table.num_rows, part, np.int8)

    def _rows(self, table: pa.RecordBatch, part: int | None) -> Rows:
        """Return a table as rows; `part` is that of its group."""
        layout = self.layout
        inputs = {
            name: self._raw_readers[name].read(layout.column(table, name))
            if layout.is_kept(name)
            else _stack_columns([layout.numbers(table, column) for column in columns], layout.dtype(name))
            for name, columns in layout.inputs.items()
        }
        weight = layout.source.sample_weight
        return Rows(
            inputs=inputs,
            label=layout.label(table),
            heads={head: layout.label(table, head) for head in layout.source.heads},
            sample_weight=None if weight is None else layout.numbers(table, weight),
            columns=self._columns,
            kept=self._raw_columns,
            part=self._part(table, part),
        )

    def _learn_numbers(self, table: pa.RecordBatch, name: str, hasher: Hasher, position: Position) -> bool:
        """Learn a column if it holds only finite numbers, faster than `_learn`; return whether it does."""
        dtype = self._plain_numbers.get(name)
        if dtype is None or (column := table.column(name)).null_count:
            return False
        numbers = as_numpy(column)
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            return False
        self._digits.update(f"column {name!r}", numbers, position)
        hasher.add(name, numbers.astype(dtype, copy=False))
        return True

    def _learn(
        self, table: pa.RecordBatch, name: str, hasher: Hasher, file: str, position: Position, faults: Faults
    ) -> None:
        """Check a column and add it to the digest."""
        import pyarrow as pa

        layout, column, source = self.layout, self.layout.column(table, name), self.layout.source
        raw, is_words = name in layout.raw, is_text(self._schemas[file].field(name).type)
        text_column = self._texts.get(name) if is_words else None
        if _find_missing(column, name, position, source, faults, raw=raw):
            return
        content = self._raw_readers[name].update(column, file) if name in self._raw_readers else []
        if name in layout.dtypes:
            numbers = as_numpy(column)
            self._digits.update(f"column {name!r}", np.nan_to_num(numbers) if raw else numbers, position)
            hasher.add(name, *(content if raw else [numbers.astype(layout.dtypes[name], copy=False)]))
            return
        if raw:
            hasher.add(name, *content)
            if text_column is not None:
                words, codes = content
                text_column.update(pa.array(words), codes, position)
            return
        if name == source.sample_weight or name in source.numeric_labels:
            add_text(column, name, position, faults)
            return
        encoded = column.dictionary_encode()
        words, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        if text_column is not None:
            text_column.update(encoded.dictionary, codes, position)
        hasher.add(name, words, codes)

    def _count_parts(self, table: pa.RecordBatch, group: Group, position: Position, faults: Faults) -> np.ndarray:
        """Return how many rows of a table are in each part; add other words to the faults."""
        name = self.layout.part
        if name is None or name not in self.layout.used:
            return np.bincount([group.part or 0], [table.num_rows], len(PARTS)).astype(np.int64)
        codes = self._part_codes(table)
        wrong = np.flatnonzero(codes < 0)
        words = [str(table.column(name)[row]) for row in wrong[:SHOWN].tolist()]
        if words:
            cells = [(repr(word), position, row) for word, row in zip(words, wrong.tolist(), strict=False)]
            faults.add(PART_RULE, name, cells, len(wrong), nearest(words[0], PARTS))
        return np.bincount(np.maximum(codes, 0), minlength=len(PARTS))

    def _part_codes(self, table: pa.RecordBatch) -> np.ndarray:
        """Return the place in `PARTS` of each row's part, -1 for other words."""
        assert self.layout.part is not None
        return places(plain_column(table.column(self.layout.part)).cast("string"), PARTS)


def _identifiers(
    source: TableSource, schemas: Mapping[str, pa.Schema], groups: Sequence[Group], others: set[str | None]
) -> list[str]:
    """Return the columns that identify rows, but not those that a setting names, `others`, or all columns."""
    if source.inputs or source.identifiers == "keep":
        return []
    names = next(iter(schemas.values())).names
    named = {*source.labels, source.sample_weight, *source.readings, *source.words, *source.excluded(names), *others}
    features = [name for name in names if name not in named and all(name in s.names for s in schemas.values())]
    ids = identifying_columns(schemas, groups, features)
    return ids if len(ids) < len(features) + len(others - {*source.labels, None}) else []


def _stack_columns(columns: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return columns [N] as one array [N, columns], transposed in pieces that stay in the processor's cache."""
    stacked, array = np.stack(columns, dtype=dtype, casting="unsafe"), np.empty((len(columns[0]), len(columns)), dtype)
    for first in range(0, len(array), CACHED):
        array[first : first + CACHED] = stacked[:, first : first + CACHED].T
    return array


def _find_missing(
    column: pa.Array, name: str, position: Position, source: TableSource, faults: Faults, *, raw: bool
) -> bool:
    """Add numbers that are not finite and, unless the column is raw, missing values; return whether there are any.

    Missing are nulls, empty texts, and the marks that the user lists.
    """
    wrong = np.zeros(0, bool)
    if str(column.type) in ("halffloat", "float", "double"):
        wrong = np.isinf(as_numpy(column)) if raw else ~np.isfinite(as_numpy(column))
    elif is_text(column.type) and not raw:
        wrong = places(column, [None, "", *source.missing]) >= 0
    elif column.null_count and not raw:
        wrong = column.is_null().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(wrong)
    values = [column[row].as_py() for row in rows[:SHOWN].tolist()]
    if not values:
        return False
    infinite = isinstance(values[0], float)
    shown = [repr(v) if v and not isinstance(v, float) else str(v or "nothing") for v in values]
    fix = "Drop or correct such rows before training"
    fix += ", or set {at}unlabeled=drop" if name in source.labels and not (infinite and np.isinf(values[0])) else ""
    if name not in (*source.labels, source.sample_weight):
        fix += ", or leave the column out ({at}exclude)"
        gap = not infinite or np.isnan(values[0])
        fix += "; a column that is an input by itself may hold missing values" if gap and not raw else ""
    rule = "Data must be finite." if infinite else "Columns that are read must have a value in every row."
    faults.add(rule, name, list(zip(shown, [position] * len(shown), rows.tolist(), strict=False)), len(rows), f"{fix}.")
    return True
