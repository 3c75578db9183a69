"""The roles and dtypes of a table's columns, from its source's settings and its files' schemas."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.data.arrow import as_numpy, is_text, plain_column
from ortpipe.data.faults import raise_all
from ortpipe.data.frames import check_unique_columns
from ortpipe.data.parts import SplitConfig
from ortpipe.data.raw_columns import RawColumn, float_type, kind_of
from ortpipe.data.reader import PART_RULE
from ortpipe.data.table import TableSource
from ortpipe.data.text_columns import categorical_fix
from ortpipe.errors import DataError, nearest
from ortpipe.graph.core.selection import matches

if TYPE_CHECKING:
    import pyarrow as pa

LISTED = 12
PLURAL = {"number": "numbers", "word": "words", "date": "dates"}
FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's name → NumPy's


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table that are read, with their roles."""

    source: TableSource  # the user's settings
    inputs: Mapping[str, tuple[str, ...]]  # input → its columns
    part: str | None  # the column that names each row's part
    dtypes: Mapping[str, np.dtype]  # column of numbers → its dtype; all other columns hold words or dates
    faulty: Collection[str] = ()  # columns with an error, which are not read

    @functools.cached_property
    def used(self) -> list[str]:
        """Every column that is read, once."""
        not_inputs = filter(None, (*self.source.labels, self.source.sample_weight, self.part))
        names = dict.fromkeys([*not_inputs, *(name for names in self.inputs.values() for name in names)])
        return [name for name in names if name not in self.faulty]

    @property
    def key(self) -> list[Any]:
        """JSON values that distinguish layouts of the same columns."""
        columns: list[Any] = [self.source.labels, self.source.sample_weight, self.part, list(self.inputs.items())]
        columns += [dict(self.source.heads)] if self.source.heads else []
        return [columns, [(name, str(dtype)) for name, dtype in self.dtypes.items()]]

    def is_kept(self, name: str) -> bool:
        """Return whether an input is a column by itself."""
        return self.inputs[name] == (name,)

    @functools.cached_property
    def raw(self) -> set[str]:
        """The columns that are raw inputs and nothing else; only these may hold dates and missing values."""
        used_otherwise = {*self.source.labels, self.source.sample_weight, self.part}
        used_otherwise.update(*(columns for name, columns in self.inputs.items() if not self.is_kept(name)))
        return {name for name in self.inputs if self.is_kept(name)} - used_otherwise

    def dtype(self, name: str) -> np.dtype:
        """Return the dtype of an input's array, which holds all its columns."""
        if self.is_kept(name):
            return float_type(self.dtypes[name]) if name in self.dtypes else np.dtype(object)
        return np.result_type(*(self.dtypes[column] for column in self.inputs[name]))

    def column(self, table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
        """Return a column's values, as text if the source lists it as categorical; raw text may be coded."""
        values = plain_column(table.column(name), coded=name in self.raw)
        is_coded = hasattr(values, "dictionary")
        return values.cast("string") if name in self.source.words and not is_coded else values

    def numbers(self, table: pa.Table | pa.RecordBatch, column: str) -> np.ndarray:
        """Return a column of numbers."""
        return as_numpy(table.column(column)).astype(self.dtypes[column], copy=False)

    def label(self, table: pa.Table | pa.RecordBatch, head: str = "") -> np.ndarray:
        """Return the labels of a head, [N] or [N, columns]: numbers, text, or 0 and 1 for false and true."""
        name = self.source.heads[head] if head else self.source.label
        if not isinstance(name, str):
            return np.stack([self.numbers(table, column) for column in name], axis=1)
        if name in self.dtypes:
            return self.numbers(table, name)
        column = self.column(table, name)
        if column.null_count:
            return np.array(column.to_pylist())
        coded = column.dictionary_encode()
        values = np.array(coded.dictionary.to_pylist())  # NumPy text, as wide as the longest word
        return (values.astype(np.int64) if values.dtype == bool else values)[coded.indices.to_numpy()]

    def notes(self, raw_columns: Mapping[str, RawColumn]) -> list[str]:
        """Return which columns are inputs, by kind, and the columns of each array."""
        kinds = []
        for kind, noun in PLURAL.items():
            columns = [(name, column.missing) for name, column in raw_columns.items() if column.kind == kind]
            names = [f"{name} ({missing:,} missing)" if missing else name for name, missing in columns]
            kinds += [f"{noun} {_listed(names)}"] if names else []
        notes = [f"{_count(len(raw_columns), 'column')}: {'; '.join(kinds)}"] if kinds else []
        arrays = {name: columns for name, columns in self.inputs.items() if not self.is_kept(name)}
        notes += [f"input {name} of {_count(len(of), 'column')}: {_listed(of)}" for name, of in arrays.items()]
        return [f"{'; '.join(notes)}; label {', '.join(self.source.labels)}"]


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:LISTED], *([f"{len(names) - LISTED:,} more"] if len(names) > LISTED else [])])


def lay_out(
    source: TableSource,
    schemas: Mapping[str, pa.Schema],
    part: str | None,
    identifiers: Iterable[str],
    faulty: Collection[str],
    errors: list[DataError],
) -> TableLayout:
    """Return the layout of files with these schemas, without identifiers and faulty columns.

    Add the errors of columns to `errors`, and raise all of them if files do not fit.
    """
    # pandas stores the index of a frame in extra columns: they number the rows and are no features
    indices = [(schema.pandas_metadata or {}).get("index_columns", []) for schema in schemas.values()]
    not_features = [*source.labels, source.sample_weight, part, *(column for columns in indices for column in columns)]
    first_names = next(iter(schemas.values())).names
    excluded = source.excluded(first_names).union(identifiers, faulty)
    features = tuple(name for name in first_names if name not in not_features and name not in excluded)
    inputs = source.inputs_of(features)
    if not inputs or not all(inputs.values()):
        rule, fix = "A table must hold at least one column of features.", "Add columns, or check the label."
        raise_all(errors or [DataError(rule, got="only labels", fix=fix)])
    for file in schemas:
        for name in dict.fromkeys(column for columns in inputs.values() for column in columns):
            if name not in schemas[file].names:
                rule, fix = "Every file must hold the columns of the first one.", nearest(name, schemas[file].names)
                errors.append(DataError(rule, got=f"{file} without {name!r}", fix=fix))
                faulty = {*faulty, name}
    without_dtypes = TableLayout(source, inputs, part, {}, faulty)
    dtypes, wrong = dict[str, np.dtype](), set[str]()
    for name in without_dtypes.used:
        try:
            dtype = _dtype(source, name, schemas, dates=name in without_dtypes.raw)
        except DataError as error:
            errors.append(error)
            wrong.add(name)
        else:
            dtypes |= {} if dtype is None else {name: dtype}
    if part in dtypes:
        rule, fix = PART_RULE, "Choose a column of text."
        errors.append(DataError(rule, got=f"column {part!r} of {dtypes[part]}", fix=fix))
    layout = TableLayout(source, inputs, part, dtypes, {*faulty, *wrong, *(dtypes.keys() & {part})})
    for name, columns in inputs.items():
        if words := [column for column in columns if column not in dtypes and not layout.is_kept(name)]:
            rule, fix = "An input of several columns holds numbers.", "List the columns in {key}=[…]: each is an input."
            actual = f"words in column {words[0]!r} of input {name!r}"
            raise_all([*errors, DataError(rule, key="inputs", got=actual, fix=fix)])
    return layout


def text_columns(source: TableSource, schemas: Mapping[str, pa.Schema]) -> dict[str, str | None]:
    """Return the columns that are text in all files, or have a setting, with their settings.

    Columns of arrays, and of words by a setting, stay as they are.
    """
    arrays = source.inputs if isinstance(source.inputs, Mapping) else {}
    in_arrays = {name for array, chosen in arrays.items() if chosen and chosen != (array,) for name in chosen}
    [first, *_] = schemas.values()
    roles = {*source.labels, source.sample_weight}
    read = roles | (set(source.inputs or first.names) - source.excluded(first.names))
    settings = dict[str, str | None]()
    for name in (name for name in first.names if name and name in read - in_arrays - source.words):
        types = [schema.field(name).type for schema in schemas.values() if schema.names.count(name) == 1]
        if len(types) == len(schemas) and (name in source.readings or all(map(is_text, types))):
            settings[name] = source.readings.get(name)
    return settings


def setting_errors(source: TableSource, schemas: Mapping[str, pa.Schema], split: SplitConfig | None) -> list[DataError]:
    """Return an error for each setting that names a column which a file does not have; raise for two of one name."""
    columns_by_key: dict[str, Iterable[str]] = {
        "label": source.labels_of(""),
        **{f"heads.{head}": source.labels_of(head) for head in source.heads},
        "sample_weight": filter(None, [source.sample_weight]),
        "categorical": source.categorical,
        "columns": source.readings,
    }
    if isinstance(source.inputs, Mapping):
        columns_by_key |= {f"inputs.{name}": columns or () for name, columns in source.inputs.items()}
    else:
        columns_by_key["inputs"] = source.inputs or ()
    keys = [(key, column) for key, columns in columns_by_key.items() for column in columns]
    names, errors = {file: set(schema.names) for file, schema in schemas.items()}, list[DataError]()
    of_split = {key: getattr(split, key, None) for key in ("column", "time", "group")}
    for file, schema in schemas.items():
        check_unique_columns(file, schema.names)
        for key, column in keys:
            if column not in names[file] and column not in of_split.values():
                fix = nearest(column, names[file])
                rule, got = "{key} must name columns of the data.", f"{column!r} for {file}"
                errors.append(DataError(rule, key=key, got=got, fix=fix))
        for key, name in of_split.items():
            if name is not None and name not in names[file]:
                rule = f"split.{key} must name a column of the data."
                errors.append(DataError(rule, got=f"{name!r} for {file}", fix=nearest(name, names[file])))
    chosen = source.inputs.values() if isinstance(source.inputs, Mapping) else [source.inputs]
    listed = {name for columns in chosen for name in columns or ()}
    first_names = next(iter(schemas.values())).names
    for pattern in source.patterns:
        matching = matches(pattern, first_names)
        if not matching:
            rule, fix = "{key} must name columns of the data, by name or glob.", nearest(pattern, first_names)
            errors.append(DataError(rule, key="exclude", got=repr(pattern), fix=fix))
        if both := sorted(listed.intersection(matching)):
            rule, fix = "A column must not be an input and excluded.", "Remove it from {at}inputs or from {at}exclude."
            errors.append(DataError(rule, got=repr(both[0]), fix=fix))
    return errors


def with_known(source: TableSource, schemas: Mapping[str, pa.Schema]) -> TableSource:
    """Return a source without the settings of columns that are not in all files, so that the others can be checked."""
    names = set.intersection(*(set(schema.names) for schema in schemas.values()))

    def known(columns: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in columns if name in names)

    chosen: Any = source.inputs
    if isinstance(chosen, Mapping):
        chosen = {name: of for name, columns in chosen.items() if (of := columns and known(columns)) != ()}
    else:
        chosen = known(chosen or ())
    return dataclasses.replace(
        source,
        heads={head: of for head, of in source.heads.items() if names.issuperset(source.labels_of(head))},
        sample_weight=source.sample_weight if source.sample_weight in names else None,
        inputs=chosen or None,
        columns={name: setting for name, setting in source.readings.items() if name in names},
    )


def _dtype(source: TableSource, name: str, schemas: Mapping[str, pa.Schema], *, dates: bool) -> np.dtype | None:
    """Return the dtype that holds a column's numbers in all files; None for a column of categories."""
    kinds = {file: _kind(source, name, file, schema.field(name).type, dates) for file, schema in schemas.items()}
    numbers = [kind for kind in kinds.values() if kind is not None]
    if numbers and len(numbers) < len(kinds):
        text, number = (next(f for f, k in kinds.items() if (k is None) == is_text) for is_text in (True, False))
        rule = "A column has one type in every file."
        fix = f"Write it alike in all of them, or, {categorical_fix(name)}."
        raise DataError(rule, got=f"column {name!r} is text in {text}, numbers in {number}", fix=fix)
    return np.result_type(*numbers) if numbers else None


def _kind(source: TableSource, name: str, file: str, kind: pa.DataType, dates: bool) -> np.dtype | None:
    """Return the dtype of a column of numbers in one file; None for categories, and for dates if `dates`."""
    of_raw, is_moment = kind_of(kind), str(kind).startswith(("date", "time"))
    if of_raw is not None and (name in source.words or (of_raw != "number" and (dates or not is_moment))):
        return None
    if of_raw == "number":
        is_float64 = str(kind).startswith(("decimal", "null"))  # nulls are rejected when they are read
        # pyarrow can convert the type too, but imports pandas for that
        return np.dtype(np.float64 if is_float64 else FLOATS.get(str(kind), str(kind)))
    way_out = "" if of_raw is None else f"; {categorical_fix(name)}"
    rule, actual = "A column may hold numbers, text or truth values.", f"column {name!r} of {file}, of type {kind}"
    raise DataError(rule, got=actual, fix=f"Convert it to numbers or text, or leave it out of {{at}}inputs{way_out}.")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
