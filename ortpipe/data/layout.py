"""What the columns of a table are: the settings of its source, held against the schemas of its files."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.data.arrow import as_numpy, plain
from ortpipe.data.frames import check_unique_columns
from ortpipe.data.raw_columns import RawColumn, float_type
from ortpipe.data.rows import Category
from ortpipe.data.table import TableSource
from ortpipe.data.text_columns import categorical_fix
from ortpipe.errors import DataError, nearest

if TYPE_CHECKING:
    import pyarrow as pa

Categories = Mapping[str, tuple[Category, ...]]
MANY_INPUTS, MANY_OF_ONE = 1000, 100  # beyond these, a user has surely not meant so many
LISTED = 12
FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # as Arrow and NumPy call them


@dataclass(frozen=True)
class TableLayout:
    """Which columns of a table are read, as what."""

    source: TableSource  # what the user says of the columns
    inputs: Mapping[str, tuple[str, ...]]  # input → its columns
    part: str | None  # the column that says which part a row is in
    dtypes: Mapping[str, np.dtype]  # column of numbers → its NumPy type; a column that is not here has categories

    @functools.cached_property
    def used(self) -> list[str]:
        """Every column that is read, once."""
        others = filter(None, (*self.source.labels, self.source.sample_weight, self.part))
        return list(dict.fromkeys([*others, *(name for names in self.inputs.values() for name in names)]))

    @property
    def key(self) -> list[Any]:
        """What tells layouts of the same columns apart, as JSON values."""
        columns: list[Any] = [self.source.labels, self.source.sample_weight, self.part, list(self.inputs.items())]
        columns += [dict(self.source.heads)] if self.source.heads else []
        encodings = [self.source.encode_of(name) for name in self.inputs]
        return [columns, encodings, [(name, str(dtype)) for name, dtype in self.dtypes.items()]]

    def one_hot(self, column: str) -> bool:
        """Return whether any input has a column of 0 and 1 for each value of this one."""
        return any(column in names and self.source.encode_of(name) == "one_hot" for name, names in self.inputs.items())

    def is_kept(self, name: str) -> bool:
        """Return whether an input is a column as it stands."""
        return self.source.encode_of(name) == "keep"

    @property
    def raw(self) -> set[str]:
        """The columns that are read as they stand and as nothing else: dates may be among them, and missing values."""
        otherwise = {*self.source.labels, self.source.sample_weight, self.part}
        otherwise.update(*(columns for name, columns in self.inputs.items() if not self.is_kept(name)))
        return {columns[0] for name, columns in self.inputs.items() if self.is_kept(name)} - otherwise

    def dtype(self, name: str) -> np.dtype:
        """Return the type of an input's array: the one that holds all its columns."""
        if self.is_kept(name):
            [column] = self.inputs[name]
            return float_type(self.dtypes[column]) if column in self.dtypes else np.dtype(object)
        text: Any = np.float32 if self.source.encode_of(name) == "one_hot" else np.int64
        return np.result_type(*(self.dtypes.get(column, text) for column in self.inputs[name]))

    def blocks(self, name: str, categories: Categories) -> list[tuple[str, tuple[Category, ...]]]:
        """Return an input's columns, each with the values that become a column of 0 and 1 each, if they do."""
        one_hot = self.source.encode_of(name) == "one_hot"
        return [(column, categories.get(column, ()) if one_hot else ()) for column in self.inputs[name]]

    def column(self, table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
        """Return a column's values; as text where the user says that they are words."""
        values = plain(table.column(name))
        return values.cast("string") if name in self.source.categorical else values

    def numbers(self, table: pa.Table | pa.RecordBatch, column: str) -> np.ndarray:
        """Return a column of numbers."""
        return as_numpy(table.column(column)).astype(self.dtypes[column], copy=False)

    def label(self, table: pa.Table | pa.RecordBatch, head: str = "") -> np.ndarray:
        """Return the labels of a head, [N] or one column each: numbers, text, or 0 and 1 for false and true."""
        name = self.source.heads[head] if head else self.source.label
        if not isinstance(name, str):
            return np.stack([self.numbers(table, column) for column in name], axis=1)
        if name in self.dtypes:
            return self.numbers(table, name)
        column = self.column(table, name)
        if column.null_count:
            return np.array(column.to_pylist())
        coded = column.dictionary_encode()
        values = np.array(coded.dictionary.to_pylist())  # NumPy's text, as wide as the longest of these words
        return (values.astype(np.int64) if values.dtype == bool else values)[coded.indices.to_numpy()]

    def notes(self, categories: Categories) -> list[str]:
        """Return how many inputs came from which columns, and a warning where they are surely too many."""
        notes = []
        for name in (name for name in self.inputs if not self.is_kept(name)):
            blocks = [(column, len(values) or 1) for column, values in self.blocks(name, categories)]
            widths, total = dict(blocks), sum(width for _, width in blocks)
            widest = sorted(widths, key=lambda column: -widths[column])
            shown = [column if widths[column] == 1 else f"{column} {widths[column]}" for column in widest[:LISTED]]
            more = [f"{len(widest) - LISTED:,} more"] if len(widest) > LISTED else []
            whose = f"{name}: " if len(self.inputs) > 1 else ""
            notes.append(
                f"{whose}{_count(total, 'input')} from {_count(len(widths), 'column')}: {', '.join(shown + more)}; "
                f"label {', '.join(self.source.labels)}"
            )
            if widths[widest[0]] > MANY_OF_ONE or total > MANY_INPUTS:
                notes.append(
                    f"warning: {whose}{total:,} inputs, {widths[widest[0]]:,} of them from column {widest[0]!r}: "
                    "choose columns with data.source.inputs, or read values as their places with "
                    "data.source.encode=index"
                )
            places = [column for column in widths if column in categories and self.source.encode_of(name) == "index"]
            if places:
                notes.append(
                    f"{whose}{', '.join(places[:LISTED])}: each value is its place in sorted order (encode=index), "
                    "which is right for a model that looks it up; one that multiplies it takes it for an amount"
                )
        return notes


def raw_column_notes(kept: Mapping[str, RawColumn], labels: Iterable[str]) -> list[str]:
    """Return which columns are inputs as they stand, by what they hold, if any are."""
    plural = {"number": "numbers", "word": "words", "date": "dates"}
    said = []
    for kind, noun in plural.items():
        names = [f"{n} ({own.missing:,} missing)" if own.missing else n for n, own in kept.items() if own.kind == kind]
        more = [f"{len(names) - LISTED:,} more"] if len(names) > LISTED else []
        said += [f"{noun} {', '.join(names[:LISTED] + more)}"] if names else []
    return (
        [f"{_count(len(kept), 'column')} as they stand: {'; '.join(said)}; label {', '.join(labels)}"] if said else []
    )


def lay_out(source: TableSource, schemas: Mapping[str, pa.Schema], part: str | None) -> TableLayout:
    """Return which columns are read as what, from the schema of each file; refuse what does not fit its source."""
    named: dict[str, Iterable[str]] = {
        "label": source.labels_of(""),
        **{f"heads.{head}": source.labels_of(head) for head in source.heads},
        "sample_weight": filter(None, [source.sample_weight]),
        "categorical": source.categorical,
    }
    if isinstance(source.inputs, Mapping):
        named |= {f"inputs.{name}": columns for name, columns in source.inputs.items()}
    else:
        named["inputs"] = source.inputs or ()
    keys = [(key, column) for key, columns in named.items() for column in columns]
    names = {file: set(schema.names) for file, schema in schemas.items()}
    for file, schema in schemas.items():
        check_unique_columns(file, schema.names)
        for key, column in keys:
            if column not in names[file]:
                fix = _separated(names[file]) or nearest(column, names[file])
                raise DataError("{key} names columns of the data.", key=key, got=f"{column!r} for {file}", fix=fix)
        if part is not None and part not in names[file]:
            fix = nearest(part, names[file])
            raise DataError("split.column names a column of the data.", got=f"{part!r} for {file}", fix=fix)
    # pandas keeps the index of a frame in columns of its own: they number the rows and are no features
    indices = [(schema.pandas_metadata or {}).get("index_columns", []) for schema in schemas.values()]
    taken = [*source.labels, source.sample_weight, part, *(column for columns in indices for column in columns)]
    others = tuple(name for name in next(iter(schemas.values())).names if name not in taken)
    inputs = source.inputs_of(others)
    if not inputs or not all(inputs.values()):
        rule, fix = "A table holds at least one column of features.", "Add columns, or check the label."
        raise DataError(rule, got="labels alone", fix=fix)
    for file in schemas:
        for name in others if source.inputs is None else ():
            if name not in names[file]:
                rule, fix = "Every file holds the columns of the first one.", nearest(name, names[file])
                raise DataError(rule, got=f"{file} without {name!r}", fix=fix)
    bare = TableLayout(source, inputs, part, {})
    kinds = {name: _dtype(source, name, schemas, dates=name in bare.raw) for name in bare.used}
    dtypes = {name: dtype for name, dtype in kinds.items() if dtype is not None}
    if part in dtypes:
        rule, fix = "split.column holds the words train, validation and test.", "Choose a column of text."
        raise DataError(rule, got=f"column {part!r} of {dtypes[part]}", fix=fix)
    return TableLayout(source, inputs, part, dtypes)


def _dtype(source: TableSource, name: str, schemas: Mapping[str, pa.Schema], *, dates: bool) -> np.dtype | None:
    """Return the type that holds a column's numbers of every file; None for a column of categories."""
    kinds = {file: _kind(source, name, file, schema.field(name).type, dates) for file, schema in schemas.items()}
    numbers = [kind for kind in kinds.values() if kind is not None]
    if numbers and len(numbers) < len(kinds):
        text, number = (next(f for f, k in kinds.items() if (k is None) == is_text) for is_text in (True, False))
        rule, fix = (
            "A column has one type in every file.",
            f"Write it alike in all of them, or, {categorical_fix(name)}.",
        )
        raise DataError(rule, got=f"column {name!r} is text in {text}, numbers in {number}", fix=fix)
    return np.result_type(*numbers) if numbers else None


def _kind(source: TableSource, name: str, file: str, kind: pa.DataType, dates: bool) -> np.dtype | None:
    """Return the NumPy type of a column of numbers in one file, None for one of categories, or of dates as text."""
    import pyarrow as pa

    is_ = pa.types
    if name in source.categorical and not is_.is_nested(kind):
        return None
    if is_.is_dictionary(kind) or is_.is_boolean(kind) or is_.is_string(kind) or is_.is_large_string(kind):
        return None
    if dates and (is_.is_date(kind) or is_.is_timestamp(kind) or is_.is_time(kind)):
        return None
    if is_.is_integer(kind) or is_.is_floating(kind):
        return np.dtype(FLOATS.get(str(kind), str(kind)))  # pyarrow knows it too, and imports pandas to say so
    if is_.is_decimal(kind) or is_.is_null(kind):  # nulls are refused when they are read
        return np.dtype(np.float64)
    way_out = "" if is_.is_nested(kind) else f"; {categorical_fix(name)}"
    way_out += "; {at}encode=keep keeps dates" if is_.is_date(kind) or is_.is_timestamp(kind) else ""
    rule, got = "A column holds numbers, text or truth values.", f"column {name!r} of {file}, of type {kind}"
    raise DataError(rule, got=got, fix=f"Write it as numbers or text, or leave it out of {{at}}inputs{way_out}.")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _separated(names: Iterable[str]) -> str | None:
    """Return how to set the delimiter of a file whose lines seem to be one field.

    >>> print(_separated(["age;price"]))
    Its fields seem to be separated otherwise: '{at}delimiter=";"'
    """
    [only, *others] = names
    mark = None if others else next((mark for mark in (";", "\t", "|") if mark in only), None)
    shown = "\\t" if mark == "\t" else mark
    return None if mark is None else f"Its fields seem to be separated otherwise: '{{at}}delimiter=\"{shown}\"'"
