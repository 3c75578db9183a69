"""New rows of a table as a trained model's inputs: columns found by name, words and dates checked as in training."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ortpipe.artifact import Facts
from ortpipe.data.arrow import is_text, plain_column
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.frames import check_unique_columns
from ortpipe.data.groups import Position
from ortpipe.data.raw_columns import RawColumn, check_kinds, in_form, kind_of, numbers, texts
from ortpipe.data.rows import Rows
from ortpipe.data.written import TextReading, convert, wrong_rows
from ortpipe.errors import DataError, nearest

SHOWN = 8  # values or columns that a message names


@dataclass(frozen=True)
class UnseenTable:
    """The columns of a table that a model reads, and how they become its inputs.

    Attributes:
        model: the model, without its weights.
        facts: the model's facts.
        forms: which of its raw inputs hold truth values (`truth`) and dates (`date`).
        missing: texts that mark a missing value.
        written: column → the record of the `TextReading` that its text had in training.
    """

    model: onnx.ModelProto
    facts: Facts
    forms: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    written: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _kinds: dict[str, int] = field(init=False, default_factory=dict)
    _unknown: dict[str, tuple[int, str]] = field(
        init=False, default_factory=dict
    )  # column → number of rows, and the first one

    def __post_init__(self) -> None:
        types = {value.name: value.type.tensor_type for value in self.model.graph.input}
        self._kinds.update({name: types[name].elem_type for name in self.facts.inputs if name in types})
        for name in self._kinds:
            if len(types[name].shape.dim) != 1 and not self.facts.columns.get(name):
                raise DataError(
                    "Predicting from a table needs the names of the columns that the model was trained on.",
                    got=f"input {name!r} without column names",
                    fix="Train on a table (data=csv or data=parquet), or feed arrays to the model with onnxruntime.",
                )

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the model reads."""
        names = [column for name in self._kinds for column in self.facts.columns.get(name) or (name,)]
        return tuple(dict.fromkeys(names))

    def check(self, schema: pa.Schema, where: str) -> None:
        """Reject a table that lacks columns, has two of one name, or has one of a type that training rejects."""
        names = schema.names
        check_unique_columns(where, names)
        if missing := [name for name in self.columns if name not in names]:
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            raise DataError(
                "Rows must have all columns that the model reads.",
                got=f"no {', '.join(map(repr, missing[:SHOWN]))}{more} in {where}",
                fix=f"{nearest(missing[0], names)} It reads {', '.join(self.columns[: 3 * SHOWN])}.",
            )
        check_kinds(map(schema.field, self.columns), where)

    def feeds(self, table: pa.RecordBatch | pa.Table, position: Position) -> dict[str, np.ndarray]:
        """Return a piece of the table as the model's inputs."""
        inputs: dict[str, np.ndarray] = {}
        table = self._as_in_training(table, position)
        for name, kind in self._kinds.items():
            if names := self.facts.columns.get(name):
                columns = [_numbers(table, column, self.missing, position, gaps=False) for column in names]
                inputs[name] = np.stack(columns, axis=1)
            elif kind == onnx.TensorProto.STRING:
                words, places_of = texts(plain_column(table.column(name), coded=True), self.missing)
                words = in_form(self.forms.get(name), name, words, places_of, position)
                inputs[name] = words[places_of]
                self._count_unknown(name, words, places_of, position)
            else:
                inputs[name] = _numbers(table, name, self.missing, position, gaps=True)
        raw_columns = {name: RawColumn("number") for name in inputs if not self.facts.columns.get(name)}
        return feed_inputs(self.model, self.facts, Rows(inputs, np.zeros(table.num_rows), kept=raw_columns))

    def _as_in_training(self, table: pa.RecordBatch | pa.Table, position: Position) -> pa.RecordBatch | pa.Table:
        """Return a piece whose columns of text are read as in training; reject values that do not match."""
        if not self.written:
            return table
        arrays = {name: table.column(name) for name in table.schema.names}
        for name, record in self.written.items():
            column = plain_column(table.column(name))
            if not is_text(column.type):
                continue
            reading, missing = TextReading.from_record(record), set(record["missing"])
            if (wrong := wrong_rows(column, reading, missing)).size:
                raise DataError(
                    f"Column {name!r} must hold values as in training: {reading.described}.",
                    got=f"{column[wrong[0]].as_py()!r} in {position(int(wrong[0]))}",
                    fix="Correct it, or leave it empty if the value is missing.",
                )
            arrays[name] = convert(column, reading, missing)
        return type(table).from_pydict(arrays)

    @property
    def notes(self) -> list[str]:
        """A note for each column with words unknown to the model: it predicts the same for all of them."""
        unknown = "a word that was not in training, the first"
        return [
            f"column {name!r}: {count:,} row{'s have' if count > 1 else ' has'} {unknown} {first}"
            for name, (count, first) in self._unknown.items()
        ]

    @functools.cached_property
    def _vocabularies(self) -> dict[str, frozenset[bytes]]:
        """The words that the graph encodes, by column."""
        encoders = [node for node in self.model.graph.node if node.op_type == "LabelEncoder"]
        keys = [(node.input[0], a.strings) for node in encoders for a in node.attribute if a.name == "keys_strings"]
        return {name: frozenset(words) for name, words in keys if name in self._kinds}

    def _count_unknown(self, name: str, words: np.ndarray, places_of: np.ndarray, position: Position) -> None:
        if name not in self._vocabularies or self.forms.get(name) == "truth":
            return
        unknown = np.array([word != "" and word.encode() not in self._vocabularies[name] for word in words])[places_of]
        if unknown.any():
            row, (count, first) = int(np.argmax(unknown)), self._unknown.get(name, (0, ""))
            first = first or f"{words[places_of[row]]!r} in {position(row)}"
            self._unknown[name] = count + int(unknown.sum()), first


def _numbers(
    table: pa.RecordBatch | pa.Table, name: str, missing: Sequence[str], position: Position, *, gaps: bool
) -> np.ndarray:
    """Return a column of numbers, nan for a missing one; reject missing numbers unless `gaps`."""
    column = plain_column(table.column(name))
    try:
        if is_text(column.type):  # all of a CSV file
            is_missing = pc.is_in(
                column, value_set=pa.array([*csv.ConvertOptions().null_values, *missing], column.type)
            )
            column = pc.utf8_trim_whitespace(pc.if_else(is_missing, pa.scalar(None, column.type), column))
        elif kind_of(column.type) != "number":
            raise pa.ArrowInvalid(f"a column of type {column.type}")
        values = numbers(column.cast("float64") if is_text(column.type) else column, np.dtype(np.float64))
    except pa.ArrowInvalid as error:
        row = next((place for place, value in enumerate(column) if not _is_number(value)), 0)
        raise DataError(
            f"Column {name!r} must hold numbers, as in training.",
            got=f"{column[row].as_py()!r} in {position(row)}",
            fix="Correct it, or leave it empty if the value is missing."
            if gaps
            else "Correct it or drop the row. Columns that are inputs by themselves may hold missing values.",
        ) from error
    wrong = np.isinf(values) if gaps else ~np.isfinite(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"Column {name!r} must have a finite number in every row, as in training.",
            got=f"{'nothing' if np.isnan(values[row]) else values[row]} in {position(row)}",
            fix="Correct or drop the row. Columns that are inputs by themselves may hold missing values.",
        )
    return values


def _is_number(value: pa.Scalar) -> bool:
    try:
        value.cast("float64")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True
