"""Encoders and imputers, column by column, of numbers or words.

An encoder becomes one table per column, whose rows are the encoder's own output for each category. So dropped and rare
categories, target means and all other settings need no code of their own.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.stages.convert.sources.outputs import code_of_words
from ortpipe.stages.convert.sources.sklearn_columns import Columns, Flow


def frame(columns: Mapping[str, np.ndarray]) -> Any:
    """Return named columns as a pandas frame."""
    import pandas as pd

    # pandas may turn None into nan in a column of words, and encoders distinguish the two
    with_none = {k for k, a in columns.items() if a.dtype == object and any(value is None for value in a)}
    return pd.DataFrame({k: pd.Series(a, dtype=object) if k in with_none else a for k, a in columns.items()})


def apply_step(step: Any, rows: np.ndarray) -> np.ndarray:
    """Return a fitted step's output for rows, as a dense array."""
    features: Any = rows
    if (names := getattr(step, "feature_names_in_", None)) is not None:
        features = frame(dict(zip(names, rows.T, strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown categories are passed on purpose
        output = step.transform(features)
    return np.asarray(output.toarray() if hasattr(output, "toarray") else output)


def is_missing(value: Any) -> bool:
    """Return whether a category is a missing value."""
    return value is None or value != value or type(value).__name__ == "NAType"


def lookup(flow: Flow, encoder: Any, columns: Columns) -> Columns:
    """Return table[code] of every column, for OneHotEncoder, OrdinalEncoder and TargetEncoder."""
    op, categories = flow.op, [list(values) for values in encoder.categories_]
    strict = getattr(encoder, "handle_unknown", "") == "error"
    largest = max(map(len, categories))
    rows = np.empty((1 + largest, len(categories)), object)
    for j, values in enumerate(categories):
        rows[:, j] = [values[0] if strict else _unknown(values), *values, *[values[0]] * (largest - len(values))]
    encoded = apply_step(encoder, rows).astype(flow.dtype)
    widths = getattr(encoder, "_n_features_outs", None) or [encoded.shape[1] // len(categories)] * len(categories)
    blocks = np.split(encoded, np.cumsum(widths)[:-1], axis=1)
    if strict:
        flow.notes.append(
            f"{type(encoder).__name__}: an unknown category becomes nan, where scikit-learn raises: "
            "set handle_unknown for another result"
        )
    outputs = []
    for i, (values, block) in enumerate(zip(categories, blocks, strict=True)):
        table = block[: 1 + len(values)].copy()
        if strict:
            table[0] = np.nan
        if block.shape[1]:
            value = op.Gather(op.const(table), op.Squeeze(_code(flow, columns.pick([i]), values), [1]), axis=0)
            outputs.append(Columns.of(flow, value, table.shape[1]))
    return Columns.side_by_side(flow, outputs)


def _unknown(values: Sequence[Any]) -> Any:
    if any(isinstance(value, str) for value in values):
        return "\0unknown"
    numbers = [float(value) for value in values if not is_missing(value)]
    return max(numbers, default=0.0) + 1


def _code(flow: Flow, column: Columns, values: Sequence[Any]) -> ir.Value:
    """Return each row's category, int64 [N, 1] from 1; 0 for unknown ones."""
    op, present = flow.op, [value for value in values if not is_missing(value)]
    if all(isinstance(value, str) for value in present) and present:
        return _code_of_words(flow, column, values)
    if any(isinstance(value, str | bytes) for value in present):
        raise ConvertError(
            "The categories of a column must be all words or all numbers.",
            got=", ".join(map(repr, present[:5])),
            fix="Make the column all words before the Pipeline is fitted.",
        )
    x = column.floats()
    numbers = np.array([np.nan if is_missing(value) else float(value) for value in values], flow.dtype)
    hits = op.Equal(x, op.const(numbers[None]))
    if np.isnan(numbers).any():
        hits = op.Or(hits, op.And(op.IsNaN(x), op.const(np.isnan(numbers)[None])))
    places = op.const(np.arange(1, len(values) + 1, dtype=np.int64)[:, None])
    return op.MatMul(op.Cast(hits, to=ir.DataType.INT64), places)


def _code_of_words(flow: Flow, column: Columns, values: Sequence[Any]) -> ir.Value:
    """Return each word's category; "" is the empty word if the encoder knows that, else None, else nan."""
    code_by_word = [(str(value), i) for i, value in enumerate(values, 1) if not is_missing(value)]
    if "" in values:
        _set_empty(flow, column, "")
    elif nones := [i for i, value in enumerate(values, 1) if value is None]:
        _set_empty(flow, column, None)
        code_by_word.append(("", nones[0]))
    else:
        code_by_word += [("", i) for i, value in enumerate(values, 1) if is_missing(value)]
    keys, codes = zip(*code_by_word, strict=True)
    return code_of_words(flow.op, column.words(), keys, codes)


def _set_empty(flow: Flow, columns: Columns, value: str | None) -> None:
    flow.empty.update({part.name: value for part in columns.parts if part.name is not None})


def simple_imputer(flow: Flow, imputer: Any, columns: Columns) -> Columns:
    """Fill missing values with the columns' statistics; with `add_indicator`, append columns that mark them."""
    op, outputs, masks = flow.op, list[Columns](), list[Columns]()
    for group, places in _by_kind(columns, imputer.missing_values, imputer.statistics_):
        words = isinstance(imputer.statistics_[places[0]], str) or isinstance(imputer.missing_values, str)
        x = group.words() if words else group.floats()
        mask = _missing(flow, group, x, imputer.missing_values)
        masks.append(Columns.of(flow, op.Cast(mask, to=ir.DataType.from_numpy(flow.dtype)), len(places)))
        all_missing = [is_missing(imputer.statistics_[i]) for i in places]  # columns without any value in training
        fill_of_empty = "missing_value" if words else 0
        fill = [fill_of_empty if e else imputer.statistics_[i] for i, e in zip(places, all_missing, strict=True)]
        values = op.Where(mask, op.const(np.array([fill], str if words else flow.dtype)), x)
        places_to_keep = [i for i, e in enumerate(all_missing) if imputer.keep_empty_features or not e]
        outputs.append(Columns.of(flow, values, len(places), words=words).pick(places_to_keep))
    if imputer.add_indicator:
        outputs.append(Columns.side_by_side(flow, masks).pick(imputer.indicator_.features_))
    return Columns.side_by_side(flow, outputs)


def missing_indicator(flow: Flow, indicator: Any, columns: Columns) -> Columns:
    """Return 1 where a value is missing, for the columns that the indicator covers."""
    outputs = []
    for group, _ in _by_kind(columns.pick(indicator.features_), indicator.missing_values):
        words = isinstance(indicator.missing_values, str) or group.parts[0].words is True
        x = group.words() if words else group.floats()
        mask = _missing(flow, group, x, indicator.missing_values)
        outputs.append(Columns.of(flow, flow.op.Cast(mask, to=ir.DataType.from_numpy(flow.dtype)), group.width))
    return Columns.side_by_side(flow, outputs)


def _by_kind(columns: Columns, marker: Any, values: Sequence[Any] = ()) -> list[tuple[Columns, list[int]]]:
    """Group columns: all together if they are numbers, else one by one; return each group with its places."""
    words = [isinstance(value, str) for value in (marker, *values)] + [part.words is True for part in columns.parts]
    places = list(range(columns.width))
    return [(columns.pick([i]), [i]) for i in places] if any(words) else [(columns, places)]


def _missing(flow: Flow, columns: Columns, x: ir.Value, marker: Any) -> ir.Value:
    if x.dtype != ir.DataType.STRING:
        return flow.op.IsNaN(x) if is_missing(marker) else flow.op.Equal(x, float(marker))
    if not is_missing(marker) or marker is None:
        _set_empty(flow, columns, marker and "")
    return flow.op.Equal(x, flow.op.const(np.array("" if is_missing(marker) else marker)))


ENCODERS = {
    "sklearn.preprocessing.OneHotEncoder": lookup,
    "sklearn.preprocessing.OrdinalEncoder": lookup,
    "sklearn.preprocessing.TargetEncoder": lookup,
    "sklearn.impute.SimpleImputer": simple_imputer,
    "sklearn.impute.MissingIndicator": missing_indicator,
}
