"""Columns of a table → numbers [N, K] without gaps and on one scale, and the codes of words [N]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.selection import some
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.sources.networks.dates import date_numbers
from ortpipe.stages.convert.sources.networks.layers import Layers, shape, with_type_of
from ortpipe.stages.convert.sources.networks.more_layers import embedding, flat, side_by_side
from ortpipe.stages.convert.sources.networks.network import TableNetwork, moments, number_input
from ortpipe.stages.convert.sources.outputs import code_of_words, with_width

PARTS = ("days", "month", "day", "weekday", "hour")  # of a date; parts that never vary are left out
WORDS_PER_ROW = 0.5  # distinct words per row, from which on a column rather identifies rows
FEW_ROWS = 100
MISSING = ".missing"

Impute = Literal["median", "mean"]


class ColumnFeatures(NamedTuple):
    """The features of a table's columns."""

    numbers: ir.Value | None  # [N, K]: columns of numbers, parts of dates, and 0 or 1 for each column with gaps
    names: tuple[str, ...]  # of these: age, day.month, age.missing; columns with the same gaps share the last kind
    words: Mapping[str, ir.Value] = {}  # column → int64 codes [N]: 0 for an unknown word, then 1, 2 … as sorted
    sizes: Mapping[str, int] = {}  # column of words → number of codes, that of unknown words included
    notes: tuple[str, ...] = ()  # for the user


class _Numbers(NamedTuple):
    """Numbers [N, k] in the graph, and those of the training rows."""

    value: ir.Value
    names: Sequence[str]
    sources: Sequence[str]  # the columns that they come from
    rows: np.ndarray  # nan: missing


def features(
    op: Builder, rows: Rows, dtype: np.dtype, *, impute: Impute = "median", standardize: bool = True
) -> ColumnFeatures:
    """Add the inputs of training rows to a graph, and the nodes that make features of them, which are never trained.

    A missing number becomes the median or mean of the training rows, and so do the parts of a missing or invalid date.
    Numbers become (x − mean) / deviation. A row's weight counts in all of these, as if the row occurred so often.
    Missing words are a category of their own if the training rows have some, else unknown words.
    """
    kinds = {name: column.kind for name, column in rows.kept.items()}
    of_kind = {kind: [name for name in rows.inputs if kinds.get(name) == kind] for kind in ("date", "word")}
    notes, parts = list[str](), list[_Numbers]()
    inputs = {name: _input(op, name, array, kinds.get(name, "number"), dtype) for name, array in rows.inputs.items()}
    for name, array in rows.inputs.items():
        if kinds.get(name, "number") == "number":
            parts.append(_number_columns(op, inputs[name], name, array, rows.columns.get(name)))
    if of_kind["date"]:
        dates = _date_columns(op, {name: inputs[name] for name in of_kind["date"]}, rows, dtype)
        parts += [dates] if dates.names else []
        notes.append(f"dates are numbers, in UTC: {', '.join(dates.names) or 'none that varies'}")
    numbers, names = None, list[str]()
    if parts:
        numbers, names = _join(op, parts, rows.sample_weight, dtype, impute if kinds else None, standardize)
        missing = [pair for part in parts for pair in zip(part.sources, np.isnan(part.rows).any(0), strict=True)]
        gaps = dict.fromkeys(name for name, gap in missing if gap)
        if gaps and kinds:
            notes.append(f"a missing value is the {impute} of the training rows, and 1 beside it: {some([*gaps])}")
        notes += ["numbers are (x − mean) / deviation of the training rows"] if standardize else []
    vocabularies = {name: sorted(set(rows.inputs[name].tolist())) for name in of_kind["word"]}
    codes = {name: code_of_words(op, inputs[name], words) for name, words in vocabularies.items()}
    sizes = {name: len(words) + 1 for name, words in vocabularies.items()}
    return ColumnFeatures(numbers, tuple(names), codes, sizes, (*notes, *_word_notes(vocabularies, len(rows))))


def _word_notes(vocabularies: Mapping[str, list[str]], count: int) -> Iterator[str]:
    """Yield warnings of columns that identify rows, and a note on the number of known words."""
    for name, words in vocabularies.items():
        if count >= FEW_ROWS and len(words) > WORDS_PER_ROW * count:
            yield (
                f"warning: column {name!r} has {len(words):,} distinct words in {count:,} training rows, and "
                "so identifies rows: leave it out (data.source.exclude)"
            )
    if vocabularies:
        examples = [f"{name} {len(words)}" for name, words in vocabularies.items()]
        yield f"known words of {some(examples)}; any other word is unknown, which is one category"


def _number_columns(
    op: Builder, value: ir.Value, name: str, array: np.ndarray, titles: Sequence[str] | None
) -> _Numbers:
    columns = [name] if array.ndim == 1 else [*(titles or [f"{name}.{i}" for i in range(array[0].size)])]
    return _Numbers(_as_columns(op, value), columns, columns, array.reshape(len(array), -1).astype(np.float64))


def table_features(network: TableNetwork, layers: Layers, rows: Rows) -> ColumnFeatures:
    """Write the inputs, and the nodes that turn them into numbers and the codes of words."""
    if any(array.ndim > 2 for array in rows.inputs.values()):
        parts = [number_input(layers, name, rows, standardize=network.standardize) for name in rows.inputs]
        return ColumnFeatures(side_by_side(layers, [flat(layers, part) for part in parts]), ())
    columns = features(layers.op, rows, layers.dtype, impute=network.impute, standardize=network.standardize)
    layers.notes.extend(columns.notes)
    return columns


def word_vectors(network: TableNetwork, layers: Layers, columns: ColumnFeatures) -> list[ir.Value]:
    """Return the vectors [N, d] of each column of words; code 0 is that of an unknown word."""
    parts, op = list[ir.Value](), layers.op
    for name, codes in columns.words.items():
        count = columns.sizes[name]
        if network.words == "one_hot":
            table = layers.const(np.eye(count)[:, 1:])
        else:
            size = network.word_size or min(600, round(1.6 * (count - 1) ** 0.56))
            table = embedding(layers, f"embeddings.{name}.weight", count, size)
        parts.append(with_type_of(op.Gather(table, codes, axis=0), table, ["N", shape(table)[1]]))
    return parts


def table_inputs(network: TableNetwork, layers: Layers, rows: Rows) -> ir.Value:
    """Write the inputs; return all of their features, [N, K]."""
    columns = table_features(network, layers, rows)
    numbers = [] if columns.numbers is None else [columns.numbers]
    return side_by_side(layers, [*numbers, *word_vectors(network, layers, columns)])


def _input(op: Builder, name: str, array: np.ndarray, kind: str, dtype: np.dtype) -> ir.Value:
    if kind == "number" and (array.dtype.kind not in "biuf" or array.ndim > 2):
        raise ConvertError(
            "Features need columns of numbers, or a table's columns without encoding.",
            got=f"input {name!r} of {array.dtype}, shape {[*array.shape]}",
            fix="Let columns be inputs by themselves: {@data.source.inputs}=null.",
        )
    type_ = ir.DataType.from_numpy(dtype) if kind == "number" else ir.DataType.STRING
    return op.input(name, type_, ["N", *array.shape[1:]])


def _as_columns(op: Builder, value: ir.Value) -> ir.Value:
    """Return a column [N] as [N, 1], and [N, K] unchanged."""
    is_table = value.shape is not None and value.shape.rank() == 2
    return value if is_table else with_width(op.Unsqueeze(value, [1]), 1)


def _date_columns(op: Builder, inputs: Mapping[str, ir.Value], rows: Rows, dtype: np.dtype) -> _Numbers:
    """Return the parts of dates that vary in the training rows, nan where a date is missing."""
    text = op.Concat(*(_as_columns(op, value) for value in inputs.values()), axis=1)
    all_parts = _date_parts(op, with_width(text, len(inputs)), dtype)
    values = _dates_by_graph(np.stack([rows.inputs[name] for name in inputs], axis=1), dtype)
    parts = [(name, part) for part in PARTS for name in inputs]
    varying = [i for i in range(len(parts)) if len(np.unique(values[~np.isnan(values[:, i]), i])) > 1]
    chosen = with_width(op.Gather(all_parts, op.const(np.array(varying, np.int64)), axis=1), len(varying))
    columns = [parts[i][0] for i in varying]
    return _Numbers(chosen, [".".join(parts[i]) for i in varying], columns, values[:, varying].astype(np.float64))


def _date_parts(op: Builder, text: ir.Value, dtype: np.dtype) -> ir.Value:
    """Return the parts of dates [N, D] as floats [N, 5 · D], part by part, nan where a text is no date."""
    numbers, nan = date_numbers(op, text), op.const(np.array(np.nan, dtype))
    parts = (op.Cast(getattr(numbers, part), to=ir.DataType.from_numpy(dtype)) for part in PARTS)
    joined: ir.Value = op.Concat(*(op.Where(numbers.is_date, part, nan) for part in parts), axis=1)
    return joined


def _dates_by_graph(texts: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the parts of dates [N, D], computed by the nodes that a model reads them with."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="dates")
    op = Builder(graph, "dates")
    parts = _date_parts(op, op.input("text", ir.DataType.STRING, ["N", 1]), dtype)
    graph.outputs.append(op.rename(parts, "parts"))
    places: dict[str, int] = {}
    codes = np.array([places.setdefault(text, len(places)) for text in texts.ravel().tolist()]).reshape(texts.shape)
    distinct = np.array(list(places), object)[:, None]
    [distinct_parts] = Session(finish(ir.Model(graph, ir_version=IR_VERSION))).run({"text": distinct})
    return distinct_parts[codes].swapaxes(1, 2).reshape(len(texts), -1)


def _join(
    op: Builder,
    parts: Sequence[_Numbers],
    weight: np.ndarray | None,
    dtype: np.dtype,
    impute: Impute | None,
    standardize: bool,
) -> tuple[ir.Value, list[str]]:
    """Return all numbers [N, K], without gaps and on one scale, and their names."""
    names, columns = [name for part in parts for name in part.names], [name for part in parts for name in part.sources]
    rows = np.concatenate([part.rows for part in parts], axis=1)
    x = op.Concat(*(part.value for part in parts), axis=1) if len(parts) > 1 else parts[0].value
    x, gaps, flagged = with_width(x, len(names)), np.isnan(rows), list[int]()
    if impute is not None:
        missing = op.IsNaN(x)
        fill_values = np.array([_center(column, weight, impute == "median") for column in rows.T])
        x, rows = op.Where(missing, op.like(fill_values, x), x), np.where(gaps, fill_values, rows)
        _, first = np.unique(gaps, axis=1, return_index=True)  # columns with the same gaps, as of a date, share a flag
        flagged = sorted(int(i) for i in first if gaps[:, i].any())
    if standardize:
        mean, scale = moments(rows, weight)
        x = (x - op.like(mean, x)) / op.like(scale, x)
    if flagged:
        flags = op.Cast(op.Gather(missing, op.const(np.array(flagged)), axis=1), to=ir.DataType.from_numpy(dtype))
        x = op.Concat(x, flags, axis=1)
    return with_width(x, len(names) + len(flagged)), [*names, *(columns[i] + MISSING for i in flagged)]


def _center(column: np.ndarray, weight: np.ndarray | None, median: bool) -> float:
    """Return the median or mean of the numbers that are present, 0 if there are none.

    >>> _center(np.array([1.0, np.nan, 4.0, 2.0]), None, True), _center(np.array([1.0, 3.0]), np.array([3, 1]), True)
    (2.0, 1.0)
    """
    present = ~np.isnan(column)
    values, weights = column[present], np.ones(present.sum()) if weight is None else weight[present].astype(np.float64)
    if not weights.sum():
        return 0.0
    if not median:
        return float(np.average(values, weights=weights))
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    middle = [np.searchsorted(below, below[-1] / 2, side) for side in ("left", "right")]
    return float(values[order][np.minimum(middle, len(values) - 1)].mean())
