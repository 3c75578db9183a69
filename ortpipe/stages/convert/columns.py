"""Columns of a table as they stand → numbers [N, K] without gaps and on one scale, and the codes of words [N]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish
from ortpipe.graph.parameters import some
from ortpipe.graph.serial import IR_VERSION, OPSET
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.dates import date_numbers

ML, ML_OPSET = "ai.onnx.ml", 3
PARTS = ("days", "month", "day", "weekday", "hour")  # of a date; one that never changes says nothing and is left out
MANY = 0.5  # words per row, from which on a column tells rows apart, as a number of each would
FEW_ROWS = 100
MISSING = ".missing"

Impute = Literal["median", "mean"]


@dataclass(frozen=True)
class ColumnFeatures:
    """What a table's columns became.

    Attributes:
        numbers: [N, K], None where there are none; first columns of numbers, then parts of dates, then one column of
            0 and 1 for each column that had gaps.
        names: of these, such as `age`, `day.month` and `age.missing`; columns that miss together have one such.
        words: column → int64 codes [N]: 0 for a word that the training rows do not hold, then theirs in sorted order.
        sizes: column of words → how many codes there are, that of unknown words included; its row in a table of
            embeddings is never trained, and should begin as 0.
        notes: what was done, for the user.
    """

    numbers: ir.Value | None
    names: tuple[str, ...]
    words: Mapping[str, ir.Value] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def features(
    op: Builder, rows: Rows, dtype: np.dtype, *, impute: Impute = "median", standardize: bool = True
) -> ColumnFeatures:
    """Add the inputs of rows to a graph, and what makes features of them, which training leaves as it is.

    A number that is missing is the median or mean of the training rows, and so are the parts of a date that is missing
    or none. Numbers are (x − mean) / deviation. A row's weight counts in all of these, as if it stood there so often.
    Missing words are a category of their own where the training rows hold some, and else unknown.

    Args:
        op: writes into the graph.
        rows: the training rows.
        dtype: of the numbers.
        impute: what a missing number is.
        standardize: whether numbers are put on one scale.
    """
    dtype, kinds = np.dtype(dtype), {name: kept.kind for name, kept in rows.kept.items()}
    of_kind = {kind: [name for name in rows.inputs if kinds.get(name) == kind] for kind in ("date", "word")}
    notes, parts = list[str](), list[_Numbers]()
    inputs = {name: _input(op, name, array, kinds.get(name, "number"), dtype) for name, array in rows.inputs.items()}
    for name, array in rows.inputs.items():
        if kinds.get(name, "number") == "number":
            columns = rows.columns.get(name) or [f"{name}.{i}" for i in range(array[0].size)]
            columns = [name] if array.ndim == 1 else columns
            numbers_of = array.reshape(len(array), -1).astype(np.float64)
            parts.append(_Numbers(_wide(op, inputs[name]), columns, columns, numbers_of))
    if of_kind["date"]:
        dates = _of_dates(op, {name: inputs[name] for name in of_kind["date"]}, rows, dtype)
        parts += [dates] if dates.names else []
        notes.append(f"dates are numbers, in UTC: {', '.join(dates.names) or 'none that varies'}")
    numbers, names = None, list[str]()
    if parts:
        numbers, names = _joined(op, parts, rows.sample_weight, dtype, impute if kinds else None, standardize)
        gaps = {
            name: None for part in parts for name, gap in zip(part.of, np.isnan(part.rows).any(0), strict=True) if gap
        }
        if gaps and kinds:
            notes.append(f"a missing value is the {impute} of the training rows, and 1 beside it: {some([*gaps])}")
        notes += ["numbers are (x − mean) / deviation of the training rows"] if standardize else []
    codes, sizes = dict[str, ir.Value](), dict[str, int]()
    for name in of_kind["word"]:
        known = sorted(set(rows.inputs[name].tolist()))
        codes[name], sizes[name] = _codes(op, inputs[name], known), len(known) + 1
        if len(rows) >= FEW_ROWS and len(known) > MANY * len(rows):
            notes.append(
                f"warning: {len(known):,} words in the {len(rows):,} training rows of column {name!r}, which so tells "
                "rows apart: choose columns with data.source.inputs"
            )
    if codes:
        shown = [f"{name} {size - 1}" for name, size in sizes.items()]
        notes.append(f"known words of {some(shown)}; any other word is unknown, which is one category")
    return ColumnFeatures(numbers, tuple(names), codes, sizes, tuple(notes))


@dataclass(frozen=True)
class _Numbers:
    """Numbers [N, k]: in the graph, by name, by the column that each is of, and in the training rows, nan for none."""

    value: ir.Value
    names: Sequence[str]
    of: Sequence[str]
    rows: np.ndarray


def _input(op: Builder, name: str, array: np.ndarray, kind: str, dtype: np.dtype) -> ir.Value:
    if kind == "number" and (array.dtype.kind not in "biuf" or array.ndim > 2):
        raise ConvertError(
            "Features are made of columns of numbers, and of a table's columns as they stand.",
            got=f"input {name!r} of {array.dtype}, shape {[*array.shape]}",
            fix="Read the table with data.source.encode=keep.",
        )
    type_ = ir.DataType.from_numpy(dtype) if kind == "number" else ir.DataType.STRING
    return op.input(name, type_, ["N", *array.shape[1:]])


def _wide(op: Builder, value: ir.Value) -> ir.Value:
    """Return a column [N] as [N, 1], several as they are."""
    if value.shape is not None and value.shape.rank() == 2:
        return value
    return _shaped(op.Unsqueeze(value, [1]), 1)


def _shaped(value: ir.Value, width: int) -> ir.Value:
    value.shape = ir.Shape(["N", width])
    return value


def _of_dates(op: Builder, inputs: Mapping[str, ir.Value], rows: Rows, dtype: np.dtype) -> _Numbers:
    """Return the parts of dates that vary in the training rows, nan where a date is missing."""
    text = op.Concat(*(_wide(op, value) for value in inputs.values()), axis=1)
    every = _date_parts(op, _shaped(text, len(inputs)), dtype)
    values = _run_dates(np.stack([rows.inputs[name] for name in inputs], axis=1), dtype)
    parts = [(name, part) for part in PARTS for name in inputs]
    varies = [i for i in range(len(parts)) if len(np.unique(values[~np.isnan(values[:, i]), i])) > 1]
    chosen = _shaped(op.Gather(every, op.const(np.array(varies, np.int64)), axis=1), len(varies))
    of = [parts[i][0] for i in varies]
    return _Numbers(chosen, [".".join(parts[i]) for i in varies], of, values[:, varies].astype(np.float64))


def _date_parts(op: Builder, text: ir.Value, dtype: np.dtype) -> ir.Value:
    """Return the parts of dates [N, D] as floats [N, 5 · D], part by part, nan where a text is none."""
    numbers, nan = date_numbers(op, text), op.const(np.array(np.nan, dtype))
    parts = (op.Cast(getattr(numbers, part), to=ir.DataType.from_numpy(dtype)) for part in PARTS)
    joined: ir.Value = op.Concat(*(op.Where(numbers.known, part, nan) for part in parts), axis=1)
    return joined


def _run_dates(texts: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the parts of dates [N, D], by the nodes that a model reads them with."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="dates")
    op = Builder(graph, "dates")
    parts = _date_parts(op, op.input("text", ir.DataType.STRING, ["N", 1]), dtype)
    graph.outputs.append(op.rename(parts, "parts"))
    places: dict[str, int] = {}
    codes = np.array([places.setdefault(text, len(places)) for text in texts.ravel().tolist()]).reshape(texts.shape)
    distinct = np.array(list(places), object)[:, None]
    [made] = Session(finish(ir.Model(graph, ir_version=IR_VERSION))).run({"text": distinct})
    return made[codes].swapaxes(1, 2).reshape(len(texts), -1)


def _joined(
    op: Builder,
    parts: Sequence[_Numbers],
    weight: np.ndarray | None,
    dtype: np.dtype,
    impute: Impute | None,
    standardize: bool,
) -> tuple[ir.Value, list[str]]:
    """Return numbers side by side, without gaps and on one scale, and their names."""
    names, of = [name for part in parts for name in part.names], [name for part in parts for name in part.of]
    rows = np.concatenate([part.rows for part in parts], axis=1)
    x = op.Concat(*(part.value for part in parts), axis=1) if len(parts) > 1 else parts[0].value
    x, gaps, marks = _shaped(x, len(names)), np.isnan(rows), list[int]()
    if impute is not None:
        missing = op.IsNaN(x)
        filled = np.array([_middle(column, weight, impute == "median") for column in rows.T])
        x, rows = op.Where(missing, op.const(filled.astype(dtype)), x), np.where(gaps, filled, rows)
        _, first = np.unique(gaps, axis=1, return_index=True)  # what is missing together, as parts of a date, is once
        marks = sorted(int(i) for i in first if gaps[:, i].any())
    if standardize:
        mean = np.average(rows, axis=0, weights=weight)
        deviation = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weight))
        scale = np.where(deviation > 0, deviation, 1.0)
        x = op.Div(op.Sub(x, op.const(mean.astype(dtype))), op.const(scale.astype(dtype)))
    if marks:
        marked = op.Cast(op.Gather(missing, op.const(np.array(marks)), axis=1), to=ir.DataType.from_numpy(dtype))
        x = op.Concat(x, marked, axis=1)
    return _shaped(x, len(names) + len(marks)), [*names, *(of[i] + MISSING for i in marks)]


def _middle(column: np.ndarray, weight: np.ndarray | None, median: bool) -> float:
    """Return the median or mean of the numbers that are there, 0 where there are none.

    >>> _middle(np.array([1.0, np.nan, 4.0, 2.0]), None, True), _middle(np.array([1.0, 3.0]), np.array([3, 1]), True)
    (2.0, 1.0)
    """
    known = ~np.isnan(column)
    values, weights = column[known], np.ones(known.sum()) if weight is None else weight[known].astype(np.float64)
    if not weights.sum():
        return 0.0
    if not median:
        return float(np.average(values, weights=weights))
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    middle = [np.searchsorted(below, below[-1] / 2, side) for side in ("left", "right")]
    return float(values[order][np.minimum(middle, len(values) - 1)].mean())


def _codes(op: Builder, text: ir.Value, known: Sequence[str]) -> ir.Value:
    """Return the codes of words: 0 for another than those known, of which the first is 1."""
    op.graph.opset_imports.setdefault(ML, ML_OPSET)
    codes: ir.Value = op.LabelEncoder(
        text,
        domain=ML,
        keys_strings=list(known),
        values_int64s=list(range(1, len(known) + 1)),
        default_int64=0,
    )
    codes.type, codes.shape = ir.TensorType(ir.DataType.INT64), text.shape
    return codes
