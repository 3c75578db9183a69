"""The columns of a table as they pass through a Pipeline: numbers and words side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder

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
