"""The columns of a table as they pass through a Pipeline, numbers and words side by side; encoders and imputers."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.sources.outputs import code_of_words

Read = Callable[[bool], ir.Value]  # (as words) → [N, width]; the reader of a raw column chooses its type


@dataclass(frozen=True)
class Flow:
    """The graph that a Pipeline is written into, and the reports of its steps.

    Attributes:
        op: appends to the graph.
        dtype: of numbers.
        notes: about steps that differ from scikit-learn.
        empty: column of words → the estimator's value for empty text, "" or None; nan in all others.
        truth: columns of truth values, whose inputs are the words true and false.
        numeric_truth: those of them that a step reads as numbers.
    """

    op: Builder
    dtype: np.dtype
    notes: list[str] = field(default_factory=list)
    empty: dict[str, str | None] = field(default_factory=dict)
    truth: frozenset[str] = frozenset()
    numeric_truth: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Part:
    """Columns that are one value [N, width].

    Attributes:
        read: writes the value, as words or as numbers.
        width: number of columns; None: unknown.
        words: whether they are words; None: the reader chooses.
        name: of a raw column.
    """

    read: Read
    width: int | None
    words: bool | None = False
    name: str | None = None


@dataclass(frozen=True)
class Columns:
    """Ordered columns, in parts of one type each."""

    flow: Flow
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, flow: Flow, value: ir.Value, width: int | None, *, words: bool = False) -> "Columns":
        """Return the columns of a value [N, width]."""

        def read(as_words: bool) -> ir.Value:
            if as_words != words:
                raise ConvertError(
                    "A step must get the type it reads: numbers or words.",
                    got=f"{'words' if words else 'numbers'} where a step needs {'words' if as_words else 'numbers'}",
                    fix="Encode words before they meet numbers, such as with a OneHotEncoder for their columns.",
                )
            return value

        return cls(flow, (Part(read, width, words),))

    @classmethod
    def side_by_side(cls, flow: Flow, several: Sequence["Columns"]) -> "Columns":
        """Concatenate columns."""
        return cls(flow, tuple(part for columns in several for part in columns.parts))

    @classmethod
    def inputs(cls, flow: Flow, names: Sequence[str]) -> "Columns":
        """Return a table's raw columns; each becomes an input [N] of the graph when a step reads it."""
        return cls(flow, tuple(Part(_reader(flow, name), 1, None, name) for name in names))

    @property
    def width(self) -> int:
        """The number of columns."""
        return sum(self._widths)

    @property
    def _widths(self) -> list[int]:
        widths = [part.width for part in self.parts]
        if None in widths:
            raise ConvertError(
                "Columns can be selected only if their number is known.",
                got="a step that does not tell its number of output columns",
                fix="Give the step a get_feature_names_out.",
            )
        return [width for width in widths if width is not None]

    def pick(self, places: Sequence[int]) -> "Columns":
        """Return the columns at these places, in this order."""
        sources = [(part, i) for part, width in zip(self.parts, self._widths, strict=True) for i in range(width)]
        runs: list[tuple[Part, list[int]]] = []
        for place in places:
            part, column = sources[place]
            if runs and runs[-1][0] is part and part.width != 1:
                runs[-1][1].append(column)
            else:
                runs.append((part, [column]))
        return Columns(self.flow, tuple(self._of_part(part, columns) for part, columns in runs))

    def _of_part(self, part: Part, columns: list[int]) -> Part:
        if part.width is not None and columns == list(range(part.width)):
            return part
        read: Read = lambda words: self.flow.op.Gather(part.read(words), columns, axis=1)  # noqa: E731
        return Part(read, len(columns), part.words)

    def floats(self) -> ir.Value:
        """Return all columns as numbers, [N, width]."""
        op, dtype = self.flow.op, ir.DataType.from_numpy(self.flow.dtype)
        if not self.parts:
            raise ConvertError("A model needs at least one column.", got="none", fix="Choose columns to keep.")
        values = [part.read(False) for part in self.parts]
        values = [value if value.dtype in (dtype, None) else op.Cast(value, to=dtype) for value in values]
        return values[0] if len(values) == 1 else op.Concat(*values, axis=-1)

    def words(self) -> ir.Value:
        """Return one column as words, [N, 1]."""
        [part] = self.parts
        return part.read(True)


def _reader(flow: Flow, name: str) -> Read:
    value_by_type: dict[bool, ir.Value] = {}

    def read(words: bool) -> ir.Value:
        if not value_by_type:
            is_text = words or name in flow.truth
            dtype = ir.DataType.STRING if is_text else ir.DataType.from_numpy(flow.dtype)
            value_by_type[is_text] = flow.op.Unsqueeze(flow.op.input(name, dtype, ["N"]), [1])
        if not words and name in flow.truth:
            flow.numeric_truth.add(name)
            value_by_type[False] = value_by_type.get(False) or _truth_numbers(flow, value_by_type[True])
        if words not in value_by_type:
            raise ConvertError(
                "A column must be read either as numbers or as words.",
                got=f"column {name!r}",
                fix="Encode it in every step that reads it, or scale it in every one.",
            )
        return value_by_type[words]

    return read


def _truth_numbers(flow: Flow, words: ir.Value) -> ir.Value:
    """Return 1 for true, 0 for false, nan for other words."""
    op, (one, zero, nan) = flow.op, np.array([1, 0, np.nan], flow.dtype)
    falsehood = op.Where(op.Equal(words, op.const(np.array("false"))), op.const(zero), op.const(nan))
    numbers: ir.Value = op.Where(op.Equal(words, op.const(np.array("true"))), op.const(one), falsehood)
    return numbers


def as_floats(x: Any) -> ir.Value:
    """Return the features of a final predictor: a value unchanged, or columns as numbers."""
    return x.floats() if isinstance(x, Columns) else x


# Encoders and imputers. An encoder becomes one table per column, whose rows are its own output for each category: so
# dropped and rare categories, target means and all other settings need no code of their own.


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
