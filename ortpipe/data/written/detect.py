"""Find the reading of a text column from all of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ortpipe.data.arrow import distinct, matches
from ortpipe.data.raw_columns import ISO, MARKS
from ortpipe.data.text_columns import LEAST, SHARE
from ortpipe.data.written.readings import FAMILIES, TextReading, candidates, rival_of
from ortpipe.errors import DataError

PLAIN = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
# kinds of texts that decide between two forms of numbers
EVIDENCE = {"comma": ",", "dot": r"\.", "short": "^[^0-9]*[0-9]{1,3}[^0-9]*$", "long": "[0-9]{4}"}
EVIDENCE |= {"plain": PLAIN, "iso": f"^{ISO}$"}


def missing_of(marks: Iterable[str]) -> set[str]:
    """Return the texts in lower case that mark a missing value in a column with a reading."""
    return {"", *(mark.lower() for mark in (*MARKS, *marks))}


def trimmed(column: pa.Array, missing: set[str]) -> tuple[pa.Array, np.ndarray]:
    """Return a column's distinct values as text without spaces around, and each row's place; −1 for a missing value."""
    values, indices = distinct(column)
    texts = pc.utf8_trim_whitespace(values.cast("string"))
    is_missing = pc.is_in(pc.utf8_lower(texts), value_set=pa.array(sorted(missing), texts.type))
    places = indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return texts, np.where(np.append(is_missing.to_numpy(zero_copy_only=False), True)[places], -1, places)


@dataclass
class _Fit:
    """How well a reading fits a column: the rows and distinct values that match it, and the first of these."""

    reading: TextReading
    rows: int = 0
    words: int = 0
    example: str = ""


class WrittenColumn:
    """Statistics of a text column, collected in pieces: the rows that match each reading.

    Attributes:
        reading: the result of `choose`.
        decimal: the decimal mark, if no other reading of its numbers fits.
        values: number of values that are not missing.
        wrong: how many of them do not match the reading.
    """

    def __init__(self, name: str, setting: str | None, missing: set[str], *, truth: bool) -> None:
        self.name, self.setting, self.missing = name, setting, missing
        self._truth = truth  # whether yes and no may be truth values
        self.reading: TextReading | None = None
        self.decimal: str | None = None
        self.values = self.wrong = self._distinct = self._marks = 0
        self._fits = list[_Fit]()
        self._evidence = dict.fromkeys(EVIDENCE, 0)
        self._truths = set[str]()

    def probe(self, column: pa.Array) -> bool:
        """Choose the candidates by some rows; return whether these have a value at all."""
        values, places = trimmed(column, self.missing)
        texts = values.take(np.unique(places[places >= 0])).to_pylist()
        for reading in candidates(texts, self.setting) if texts else ():
            often = sum(reading.plain(text) is not None for text in texts)
            self._fits += [_Fit(reading)] if self.setting is not None or often >= SHARE * len(texts) else []
        return bool(texts)

    @property
    def is_possible(self) -> bool:
        """Whether a reading may fit."""
        return bool(self._fits)

    def update(self, column: pa.Array) -> None:
        """Add a piece of the column."""
        texts, places = trimmed(column, self.missing)
        counts = np.bincount(places[places >= 0], minlength=len(texts))
        valid = counts > 0
        self.values += int(counts.sum())
        self._distinct += int(valid.sum())
        self._marks += len(column) - column.null_count - int(counts.sum()) - _empty(column)
        for fit in self._fits:
            fitting = matches(texts, f"^(?:{fit.reading.pattern})$") & valid
            fit.rows += int(counts[fitting].sum())
            fit.words += int(fitting.sum())
            if fitting.any() and not fit.example:
                fit.example = texts[int(np.argmax(fitting))].as_py()
            if fit.reading.kind == "truth" and len(texts) < 2 * sum(map(len, FAMILIES)):
                self._truths.update(text.lower() for text in texts.filter(pa.array(valid)).to_pylist())
        for key, pattern in EVIDENCE.items():
            self._evidence[key] += int(counts[matches(texts, pattern)].sum())

    def choose(self, decimal: str | None) -> None:
        """Choose the reading that most rows match; `decimal` is the mark of the table's other numbers.

        Raises:
            DataError: the values have a unit, or two readings that differ.
        """
        by_rows = sorted(self._fits, key=lambda fit: -fit.rows)
        right = next(filter(self._is_right, by_rows), None)
        fit = next(iter(by_rows), None) if right is None and self.setting is not None else right
        if fit is not None:
            self.reading = fit.reading if right is None else self._unrivalled(fit, decimal)
            self.wrong = self.values - fit.rows  # as many for a rival that is chosen instead

    def _is_right(self, fit: _Fit) -> bool:
        kind = fit.reading.kind
        if kind == "truth":
            of_family = any(
                self._truths <= family and self._truths & {"yes", "y", "true", "t", "1"} and len(self._truths) > 1
                for family in FAMILIES
            )
            has_both = bool(self._truths & {"no", "n", "false", "f", "0"})
            return self._truth and fit.rows == self.values and of_family and has_both
        if kind == "unit":
            return fit.rows == self.values and fit.words >= LEAST
        if self.setting is not None:
            return fit.rows > 0
        if not self._marks and self.values in (self._evidence["plain"], self._evidence["iso"]):
            return False  # dates are dates anyway; the type of the column shows that its numbers are meant as words
        many_words = kind == "number" and fit.words >= LEAST and fit.words > SHARE * self._distinct
        return fit.rows > 0 and (fit.rows >= SHARE * self.values or many_words)

    def _unrivalled(self, fit: _Fit, decimal: str | None) -> TextReading:
        reading, form = fit.reading, rival_of(fit.reading)
        rivals = [
            other.reading
            for other in self._fits
            if form and other.reading.form == form and other.rows == fit.rows
            if other.reading.kind == "date" or other.reading.name == reading.name
        ]
        if not rivals:
            if reading.kind == "number" and (self._evidence["comma"] or self._evidence["dot"]):
                self.decimal = "." if reading.form == "1,234.5" else ","
            return reading
        readings = sorted([reading, *rivals], key=lambda r: r.form != "1,234.5")
        if reading.kind == "number":
            seen = self._evidence
            is_money = reading.sign not in ("", "%")  # prices with three decimals are rare
            grouped = not seen["dot"] and (is_money or (seen["short"] and not seen["long"]))
            if decimal == "." or grouped or not (seen["comma"] or seen["dot"]):
                return readings[0]
            if decimal == ",":
                return readings[-1]
        examples = (other.example for other in self._fits)
        raise ambiguous(self.name, next(t for t in examples if all(r.plain(t) for r in readings)), readings)


def _empty(column: pa.Array) -> int:
    """Return the number of empty texts."""
    values, indices = distinct(column)
    is_empty = pc.equal(values.cast("string"), "").take(indices)
    return int(pc.sum(is_empty, min_count=0).as_py())


def ambiguous(name: str, example: str, readings: Sequence[TextReading]) -> DataError:
    """Return the error for a column with several readings that differ."""
    meanings = " or ".join(f"{reading.plain(example)} ({reading.name}, {reading.form})" for reading in readings)
    forms = " or ".join(f'{{at}}columns={{{name}: "{reading.form}"}}' for reading in readings)
    return DataError(
        "A column must have one reading that fits its rows.",
        got=f"column {name!r}, in which every row has several: {example!r} is {meanings}",
        fix=f"Set {forms}.",
    )
