"""Raw columns: inputs [N] without encoding, of numbers (nan if missing), or words and dates as text ("" if missing)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortpipe.data.arrow import as_numpy, distinct
from ortpipe.data.groups import Position
from ortpipe.errors import DataError
from ortpipe.quoting import listing

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["number", "word", "date"]
# what pandas reads as a missing value, also in a text column
MARKS = ["#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"]
MARKS += ["N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
# dates of ISO 8601 as text, with an optional time and offset from UTC
DATE = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
MINUTES = "([01][0-9]|2[0-3]):[0-5][0-9]"
TIME = rf"[T ]{MINUTES}(:[0-5][0-9](\.[0-9]+)?)?(Z|[+-]([01][0-9]|2[0-3]):?[0-5][0-9])?"
ISO = f"{DATE}({TIME})?"
# the text that a column must hold if it did in training, as a pattern and in words
FORMS = {
    "truth": ("true|false", "true and false"),
    "date": (ISO, "dates of ISO 8601, such as 2013-01-31 or 2013-01-31T05:00"),
}


@dataclass(frozen=True)
class RawColumn:
    """The content of a raw column, which is an input without encoding.

    Attributes:
        kind: numbers are floats, nan if missing; words (also true and false) and dates (ISO 8601) are text, "" if
            missing.
        missing: in how many rows of its source, in all parts, the value is missing.
        of: whether its type in the table is truth value.
        marks: which of its words pandas reads as a missing value.
        whole: whether numbers among its words are written as 3 and not as 3.0.
        written: how its text becomes these values, as the record of a `TextReading`.
    """

    kind: Kind
    missing: int = 0
    of: Literal["truth"] | None = None
    marks: tuple[str, ...] = ()
    whole: bool = False
    written: Mapping[str, Any] | None = None


def kind_of(dtype: pa.DataType) -> Kind | None:
    """Return the kind of a raw column of this type; None: a table may not hold such a column.

    A column of categories holds words. A missing number may make a column of nulls.
    """
    from pyarrow import types

    if types.is_dictionary(dtype):
        return None if kind_of(dtype.value_type) is None else "word"
    if types.is_date(dtype) or types.is_timestamp(dtype):
        return "date"
    if any(is_number(dtype) for is_number in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
        return "number"
    is_word = types.is_boolean(dtype) or types.is_time(dtype) or types.is_string(dtype)
    return "word" if is_word or types.is_large_string(dtype) or types.is_string_view(dtype) else None


def check_kinds(columns: Iterable[pa.Field], where: str) -> None:
    """Reject a column of a type that a table may not hold."""
    for column in columns:
        if kind_of(column.type) is None:
            rule, fix = "A column may hold numbers, text, truth values or dates.", "Convert it to numbers or text."
            raise DataError(rule, got=f"column {column.name!r} of {where}, of type {column.type}", fix=fix)


def in_form(form: str | None, name: str, words: np.ndarray, codes: np.ndarray, position: Position) -> np.ndarray:
    """Return distinct words as in training, truth values in lower case; reject others by their first row.

    `form` is `truth`, `date`, or another for any words; "" is a missing value.
    """
    if form not in FORMS:
        return words
    pattern, values = FORMS[form]
    matching = re.compile(f"({pattern})?").fullmatch
    read = [word.lower() if form == "truth" else word for word in words.tolist()]
    if (wrong := np.array([not matching(word) for word in read])[codes]).any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"Column {name!r} must hold {values}, as in training.",
            got=f"{words[codes[row]]!r} in {position(row)}",
            fix="Correct it, or leave it empty if the value is missing.",
        )
    return np.array(read, object)


def float_type(dtype: np.dtype) -> np.dtype:
    """Return the float dtype that a column of these numbers becomes."""
    return np.dtype(np.float32 if dtype in (np.float16, np.float32) else np.float64)


def numbers(column: pa.Array, dtype: np.dtype) -> np.ndarray:
    """Return a column of numbers as the nearest floats, with one and the same nan for a missing number."""
    values = as_numpy(column).astype(dtype)
    values[np.isnan(values)] = np.nan
    return values


def texts(column: pa.Array, missing: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct texts of a column, and each row's place among them; "" is a missing value.

    Dates and times are in UTC, marked by a final Z if the column has a time zone.
    """
    values, indices = distinct(column)
    codes = indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
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
    """Reads a raw column in pieces, and collects its values.

    Args:
        name: the name of the column.
        dtype: the dtype of its numbers in the table; None for text.
        missing: texts that mark a missing value.
    """

    def __init__(self, name: str, dtype: np.dtype | None, missing: Sequence[str]) -> None:
        if not name:
            raise DataError(
                "A column that is used without encoding must have a name.",
                got="an unnamed column, such as the index that pandas writes",
                fix="Write the file without it (index=False), name it, or list the columns to use in {at}inputs.",
            )
        self._name, self._dtype, self._marks = name, dtype and float_type(dtype), missing
        self._missing, self._types = 0, dict[bool, str]()  # whether a piece holds dates → the first such file
        self._of = set[Literal["truth"] | None]()
        self._marks_seen = set[str]()
        self._forms = set[bool]()  # of numbers among the words: whether one is written as an integer

    def update(self, column: pa.Array, file: str) -> list[Any]:
        """Add a piece of the column; return the values to hash."""
        self._of.add("truth" if str(column.type) == "bool" else None)
        if self._dtype is not None:
            values = numbers(column, self._dtype)
            self._missing += int(np.isnan(values).sum())
            return [values]
        words, codes = texts(column, self._marks)
        self._missing += int((words[codes] == "").sum())
        self._types.setdefault(_is_dates(column), file)
        self._marks_seen.update({*MARKS}.intersection(words.tolist()))
        number_words = [word.lstrip("-") for word in words.tolist() if word.lstrip("-").removesuffix(".0").isdecimal()]
        self._forms.update(word.isdecimal() for word in number_words)
        return [words.tolist(), codes]

    def read(self, column: pa.Array) -> np.ndarray:
        """Return the input [N] of a piece."""
        if self._dtype is not None:
            return numbers(column, self._dtype)
        words, codes = texts(column, self._marks)
        return words[codes]

    def summary(self, *, are_dates: bool) -> RawColumn:
        """Return the content of the column; `are_dates`: all of its text is dates."""
        if len(self._types) > 1 and not are_dates:
            raise DataError(
                "A column must have the same type in every file.",
                got=f"column {self._name!r} is text in {self._types[False]}, dates in {self._types[True]}",
                fix=f"Write it with one type in all of them, or list it: {listing('{at}categorical', self._name)}",
            )
        of = self._of.pop() if len(self._of) == 1 else None
        text: Kind = "date" if are_dates or True in self._types else "word"
        kind, marks = text if self._dtype is None else "number", tuple(sorted(self._marks_seen))
        return RawColumn(kind, self._missing, of, marks, whole=self._forms == {True})


def _is_dates(column: pa.Array) -> bool:
    return str(column.type).startswith(("timestamp", "date"))
