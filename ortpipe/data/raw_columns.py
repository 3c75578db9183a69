"""Columns of a table that are inputs as they stand, [N]: numbers with nan, words and dates as text, "" for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortpipe.data.arrow import as_numpy
from ortpipe.errors import DataError, listing

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["number", "word", "date"]
# what pandas takes for a missing value, in a column of text as well
MARKS = ["#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"]
MARKS += ["N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
# dates of ISO 8601 as text, with a time or without, and that time's distance from UTC
ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$"


@dataclass(frozen=True)
class RawColumn:
    """What a column holds that is an input as it stands.

    Attributes:
        kind: numbers are floats, and nan where one is missing; words (true and false are two) and dates (ISO 8601) are
            text, and "" where one is missing.
        missing: in how many rows of its source, all parts of it, there is none.
        of: whether its type in the table is that of integers, or of truth values.
        marks: which of its words pandas takes for a missing value.
        whole: whether whole numbers are among its words, as 3 and not as 3.0.
    """

    kind: Kind
    missing: int = 0
    of: Literal["integer", "truth"] | None = None
    marks: tuple[str, ...] = ()
    whole: bool = False


def float_type(dtype: np.dtype) -> np.dtype:
    """Return the type of floats that a column of these numbers becomes."""
    return np.dtype(np.float32 if dtype in (np.float16, np.float32) else np.float64)


def numbers(column: pa.Array, dtype: np.dtype) -> np.ndarray:
    """Return a column of numbers as floats, nan (of one form) where one is missing."""
    values = as_numpy(column).astype(dtype)
    values[np.isnan(values)] = np.nan
    return values


def texts(column: pa.Array, missing: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Return the different texts of a column, and each row's place among them; "" is what is missing.

    Dates and times are those of UTC, which a Z at the end says where the column has a time zone.
    """
    whole = column.dictionary_encode()
    values, codes = whole.dictionary, whole.indices.fill_null(len(whole.dictionary)).to_numpy(zero_copy_only=False)
    if _is_dates(values):
        days = str(values.type).startswith("date")
        moments = np.array(values.to_numpy(zero_copy_only=False), "M8[D]" if days else "M8[us]")
        zone = "" if days or values.type.tz is None else "Z"
        words = [f"{text.removesuffix('.000000')}{zone}" for text in np.datetime_as_string(moments).tolist()]
    else:
        words = values.cast("string").to_pylist()
    words = ["" if word in missing else word for word in words]
    return np.array([*words, ""], object), codes


class RawColumnReader:
    """What was seen of a column that is an input as it stands, in pieces.

    Args:
        name: of the column.
        dtype: of its numbers in the table; None where it is text.
        missing: texts that mark a missing value.
    """

    def __init__(self, name: str, dtype: np.dtype | None, missing: Sequence[str]) -> None:
        if not name:
            raise DataError(
                "A column that is an input as it stands has a name.",
                got="one without a name, as pandas writes its index",
                fix="Write the file without it (index=False), name it, or list the others in {at}inputs.",
            )
        self._name, self._dtype, self._marks = name, dtype and float_type(dtype), missing
        self._missing, self._types = 0, dict[bool, str]()  # whether a piece is of dates → the first such file
        self._of = set[Literal["integer", "truth"] | None]()
        self._marks_seen, self._forms = set[str](), set[bool]()  # of numbers among the words: whether one is whole

    def see(self, column: pa.Array, file: str) -> list[Any]:
        """Take a piece of the column; return what its digest is of."""
        self._of.add(_of(column))
        if self._dtype is not None:
            values = numbers(column, self._dtype)
            self._missing += int(np.isnan(values).sum())
            return [values]
        words, codes = texts(column, self._marks)
        self._missing += int((words[codes] == "").sum())
        self._types.setdefault(_is_dates(column), file)
        self._marks_seen.update({*MARKS}.intersection(words.tolist()))
        numbers_of = [word.lstrip("-") for word in words.tolist() if word.lstrip("-").removesuffix(".0").isdecimal()]
        self._forms.update(word.isdecimal() for word in numbers_of)
        return [words.tolist(), codes]

    def read(self, column: pa.Array) -> np.ndarray:
        """Return a piece as an input, [N]."""
        if self._dtype is not None:
            return numbers(column, self._dtype)
        words, codes = texts(column, self._marks)
        return words[codes]

    def kept(self, *, are_dates: bool) -> RawColumn:
        """Return what the column holds; `are_dates` says of its text whether it is dates."""
        if len(self._types) > 1 and not are_dates:
            raise DataError(
                "A column has the same type in every file.",
                got=f"column {self._name!r} is text in {self._types[False]}, dates in {self._types[True]}",
                fix=f"Write it alike in all of them, or list it: {listing('{at}categorical', self._name)}",
            )
        of = self._of.pop() if len(self._of) == 1 else None
        text: Kind = "date" if are_dates or True in self._types else "word"
        kind, marks = text if self._dtype is None else "number", tuple(sorted(self._marks_seen))
        return RawColumn(kind, self._missing, of, marks, whole=self._forms == {True})


def _of(column: pa.Array) -> Literal["integer", "truth"] | None:
    name = str(column.type)
    return "truth" if name == "bool" else "integer" if name.startswith(("int", "uint")) else None


def _is_dates(column: pa.Array) -> bool:
    return str(column.type).startswith(("timestamp", "date"))
