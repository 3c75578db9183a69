"""What the columns of a table are: the settings of its source, held against the schemas of its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.columns import Layout
from ortpipe.data.table import TableSource
from ortpipe.errors import DataError, listing, nearest

if TYPE_CHECKING:
    import pyarrow as pa


def lay_out(source: TableSource, schemas: Mapping[str, pa.Schema], part: str | None) -> Layout:
    """Return which columns are read as what, from the schema of each file.

    Raises:
        DataError: a column is missing or there twice, or its type is no number, text or truth value.
    """
    for file, schema in schemas.items():
        _refuse_twice(file, schema.names)
        _refuse_missing(source, part, file, schema.names)
    taken = {
        *source.labels,
        source.sample_weight,
        part,
        *(n for schema in schemas.values() for n in _index_of_pandas(schema)),
    }
    others = tuple(name for name in next(iter(schemas.values())).names if name not in taken)
    inputs = source.inputs or {"X": others}
    if not all(inputs.values()):
        raise DataError(
            "A table holds at least one column of features.", got="labels alone", fix="Add columns, or check the label."
        )
    _refuse_missing_from(schemas, others if source.inputs is None else ())
    dtypes: dict[str, np.dtype] = {}
    for name in Layout(source, inputs, part, {}).used:
        as_words = name in source.categorical
        kinds = {file: _kind(name, file, schema.field(name).type, as_words) for file, schema in schemas.items()}
        dtypes |= _dtype(name, kinds)
    if part is not None and part in dtypes:
        raise DataError(
            "data.split.column holds the words train, validation and test.",
            got=f"column {part!r} of {dtypes[part]}",
            fix="Choose a column of text.",
        )
    return Layout(source, inputs, part, dtypes)


def _index_of_pandas(schema: pa.Schema) -> list[str]:
    """Return the columns in which pandas keeps the index of a frame: they number the rows and are no features."""
    return [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]


def _refuse_twice(file: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            "Every column has a name of its own.", got=f"{twice!r} twice in {file}", fix="Rename one of them."
        )


def _refuse_missing(source: TableSource, part: str | None, file: str, names: list[str]) -> None:
    keys = {
        "data.source.label": source.labels,
        "data.source.sample_weight": (source.sample_weight,),
        "data.split.column": (part,),
        "data.source.categorical": source.categorical,
        **{f"data.source.inputs.{name}": columns for name, columns in (source.inputs or {}).items()},
    }
    for key, columns in keys.items():
        for column in columns:
            if column is not None and column not in names:
                raise DataError(
                    f"{key} names columns of the data.", got=f"{column!r} for {file}", fix=nearest(column, names)
                )


def _refuse_missing_from(schemas: Mapping[str, pa.Schema], names: Iterable[str]) -> None:
    """Refuse files that lack a column of the first file."""
    for file, schema in schemas.items():
        for name in names:
            if name not in schema.names:
                raise DataError(
                    "Every file holds the columns of the first one.",
                    got=f"{file} without {name!r}",
                    fix=nearest(name, schema.names),
                )


def _kind(name: str, file: str, kind: pa.DataType, as_words: bool) -> np.dtype | None:
    """Return the NumPy type of a column of numbers, None for one of categories."""
    import pyarrow as pa

    is_ = pa.types
    if as_words and not is_.is_nested(kind):
        return None
    if is_.is_dictionary(kind) or is_.is_boolean(kind) or is_.is_string(kind) or is_.is_large_string(kind):
        return None
    if is_.is_integer(kind) or is_.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if is_.is_decimal(kind) or is_.is_null(kind):  # nulls are refused when they are read
        return np.dtype(np.float64)
    words = f"; if its values are words, list it: {listing('data.source.categorical', name)}"
    way_out = "" if is_.is_nested(kind) else words
    raise DataError(
        "A column holds numbers, text or truth values.",
        got=f"column {name!r} of {file}, of type {kind}",
        fix=f"Write it as numbers or text, or leave it out of data.source.inputs{way_out}.",
    )


def _dtype(name: str, kinds: Mapping[str, np.dtype | None]) -> dict[str, np.dtype]:
    """Return the type that holds a column of every file; nothing for one of categories."""
    numbers = [kind for kind in kinds.values() if kind is not None]
    if numbers and len(numbers) < len(kinds):
        text, number = (next(f for f, k in kinds.items() if (k is None) == is_text) for is_text in (True, False))
        raise DataError(
            "A column has one type in every file.",
            got=f"column {name!r} is text in {text}, numbers in {number}",
            fix="Write it alike in all of them, or, if its values are words, list it: "
            f"{listing('data.source.categorical', name)}.",
        )
    return {name: np.result_type(*numbers)} if numbers else {}
