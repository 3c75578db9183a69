"""The groups of a table with its text columns read as numbers, dates and truth values."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ortpipe.data.arrow import matches, plain_column
from ortpipe.data.faults import SHOWN, Cell, format_cells
from ortpipe.data.groups import PIECE, PROBED, Group, offset_position
from ortpipe.data.written.detect import WrittenColumn, missing_of, trimmed
from ortpipe.data.written.readings import TextReading, hours
from ortpipe.errors import DataError
from ortpipe.quoting import listing


@dataclass(frozen=True)
class Written:
    """The result of `as_written`: the table as if its columns were written plainly, and their readings as records.

    Attributes:
        errors: of the columns in `faulty`: a value does not match the reading of its column, or a column has two.
    """

    schemas: Mapping[str, pa.Schema]
    groups: Sequence[Group]
    records: Mapping[str, dict[str, Any]]
    errors: Sequence[DataError] = ()
    faulty: frozenset[str] = frozenset()

    def notes(self, used: Sequence[str]) -> list[str]:
        """Return the note about the readings of the columns that are used."""
        texts = [_in_words(name, record) for name, record in self.records.items() if name in used]
        return [f"read as {'; '.join(texts)}"] if texts else []


def as_written(
    settings: Mapping[str, str | None],
    schemas: Mapping[str, pa.Schema],
    groups: Sequence[Group],
    *,
    missing: Iterable[str],
    labels: Collection[str],
    point: bool,
) -> Written:
    """Return a table whose text columns of numbers, dates and truth values are read as such.

    Args:
        settings: text column → how it is read; None: by its values.
        schemas: those of the table's files, by name.
        groups: its rows.
        missing: texts that mark a missing value, besides those of every column.
        labels: the columns of labels, in which yes and no are classes.
        point: whether other numbers of the table are written with a decimal point.
    """
    marks = missing_of(missing)
    columns = {n: WrittenColumn(n, setting, marks, truth=n not in labels) for n, setting in settings.items()}
    columns = _probed(columns, groups)
    for group in groups if columns else ():
        for batch in group.read(list(columns), PIECE):
            for name, column in columns.items():
                column.update(plain_column(batch.column(name), coded=True))
    undecided = _choose(columns.values(), {"."} if point else set())
    wrong = [c for c in columns.values() if c.wrong or (c.reading and c.reading.kind == "unit")]
    errors = [*undecided.values(), *(_fault(column, _wrong_cells(column, groups)) for column in wrong)]
    faulty = frozenset([*undecided, *(column.name for column in wrong)])
    readings = {n: column.reading for n, column in columns.items() if column.reading is not None and n not in faulty}
    return Written(
        {file: _converted_schema(schema, readings) for file, schema in schemas.items()} if readings else schemas,
        [dataclasses.replace(group, read=_reader(group, readings, marks)) for group in groups] if readings else groups,
        {name: reading.record(marks) for name, reading in readings.items()},
        errors,
        faulty,
    )


def _choose(columns: Collection[WrittenColumn], marks: set[str]) -> dict[str, DataError]:
    """Choose the readings of columns; return an error by name for each that has two.

    `marks` are the decimal marks of other columns. The columns with one reading add theirs, and if the table then has
    one mark, it decides the others.
    """
    undecided = list[WrittenColumn]()
    for column in columns:
        try:
            column.choose(None)
        except DataError:
            undecided.append(column)
    marks = marks | {column.decimal for column in columns if column.decimal}
    errors = dict[str, DataError]()
    for column in undecided:
        try:
            column.choose(*marks if len(marks) == 1 else (None,))
        except DataError as error:
            errors[column.name] = error
    return errors


def _probed(columns: dict[str, WrittenColumn], groups: Sequence[Group]) -> dict[str, WrittenColumn]:
    """Return the columns for which a reading is possible, by the first rows that have a value."""
    waiting = dict(columns)
    for group in groups:
        if not waiting:
            break
        for batch in group.read(list(waiting), PROBED):
            waiting = {n: c for n, c in waiting.items() if not c.probe(plain_column(batch.column(n), coded=True))}
            if not waiting:
                break
    return {name: column for name, column in columns.items() if column.is_possible}


def _reader(group: Group, readings: Mapping[str, TextReading], missing: set[str]) -> Any:
    def read(columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        for batch in group.read(columns, most):
            arrays = {name: batch.column(name) for name in columns}
            for name in readings.keys() & {*columns}:
                arrays[name] = convert(arrays[name], readings[name], missing)
            yield pa.RecordBatch.from_pydict(arrays)

    return read


def convert(column: pa.Array | pa.ChunkedArray, reading: TextReading, missing: set[str]) -> pa.Array:
    """Return a column as float64 (times in hours), dates of ISO 8601 as text, or booleans; null if missing or wrong."""
    texts, places = trimmed(plain_column(column, coded=True), missing)
    fits = pa.array(matches(texts, f"^(?:{reading.pattern})$"))
    values = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
    for pattern, replacement in reading.steps:
        values = pc.replace_substring_regex(values, pattern, replacement)
    if reading.kind == "time":
        values = pa.array([None if time is None else hours(time) for time in values.to_pylist()], pa.float64())
    values = values.cast(_type(reading.kind))
    return values.take(pa.array(places, pa.int64(), mask=places < 0))


def wrong_rows(column: pa.Array | pa.ChunkedArray, reading: TextReading, missing: set[str]) -> np.ndarray:
    """Return the rows whose value is neither missing nor matches the reading."""
    texts, places = trimmed(plain_column(column, coded=True), missing)
    wrong = ~matches(texts, f"^(?:{reading.pattern})$")
    return np.flatnonzero(np.append(wrong, False)[places])


def _type(kind: str) -> str:
    return {"number": "float64", "time": "float64", "truth": "bool"}.get(kind, "string")


def _converted_schema(schema: pa.Schema, readings: Mapping[str, TextReading]) -> pa.Schema:
    types = {"float64": pa.float64(), "bool": pa.bool_(), "string": pa.string()}
    for name, reading in readings.items():
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_type(types[_type(reading.kind)]))
    return schema


def _wrong_cells(column: WrittenColumn, groups: Sequence[Group]) -> list[Cell]:
    """Return the first cells that do not match a column's reading; of numbers with a unit, the first ones."""
    cells, reading = list[Cell](), column.reading
    assert reading is not None
    for group in groups:
        first = 0
        for batch in group.read([column.name], PIECE):
            values = plain_column(batch.column(column.name))
            rows = np.arange(len(batch))
            if reading.kind != "unit":
                rows = wrong_rows(values, reading, column.missing)
            for row in rows[: SHOWN - len(cells)].tolist():
                cells.append((values[row].as_py(), offset_position(group.position, first), row))
            if len(cells) >= SHOWN:
                return cells
            first += len(batch)
    return cells


def _fault(column: WrittenColumn, cells: Sequence[Cell]) -> DataError:
    """Return the error for values that do not match the reading of their column."""
    reading, name = column.reading, column.name
    assert reading is not None
    way_out = f"or, if its values are words, list it: {listing('{at}categorical', name)}"
    if reading.kind == "unit":
        return DataError(
            "A column of numbers must hold numbers without a unit.",
            got=f"column {name!r} has {reading.name}: {format_cells(cells, column.values)}",
            fix=f"Remove the unit, leave the column out of {{at}}inputs, {way_out}.",
        )
    kind = {"number": "numbers", "date": "dates", "time": "times"}.get(reading.kind, "truth values")
    return DataError(
        f"If most values, or most distinct values, of a column are {kind}, all of them must be.",
        got=f"{column.wrong:,} of {column.values:,} values of column {name!r} are not {reading.described}: "
        f"{format_cells(cells, column.wrong)}",
        fix=f"Correct them; name the marks of missing values, as in {{at}}missing=['?']; {way_out}.",
    )


def _in_words(name: str, record: Mapping[str, Any]) -> str:
    form = record["form"] if record["kind"] == "number" else ""
    mark = {"1.234,5": ", decimal comma", "1 234,5": ", decimal comma"}.get(form, "")
    return f"{name}: {record['name']}{mark}"
