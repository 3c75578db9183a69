"""Find the reading of a text column from all of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


class WrittenColumn:
    """Statistics of a text column, collected in pieces: the rows that match each reading.

    Attributes:
        reading: the result of `choose`.
        decimal: the decimal mark, if no other reading of its numbers fits.
        example: a text that matches it.
        values: number of values that are not missing.
        wrong: how many of them do not match the reading.
    """

    def __init__(self, name: str, setting: str | None, missing: set[str], *, truth: bool) -> None:
        self.name, self.setting, self.missing = name, setting, missing
        self._truth = truth  # whether yes and no may be truth values
        self.reading: TextReading | None = None
        self.decimal: str | None = None
        self._readings: list[TextReading] | None = None
        self.values, self._distinct, self._marks = 0, 0, 0
        self._examples = dict[str, str]()  # a reading's pattern → the first text that matches it
        self._rows, self._words = dict[str, int](), dict[str, int]()  # a reading's pattern → rows, distinct values
        self._evidence = dict.fromkeys(EVIDENCE, 0)
        self._truths = set[str]()

    def probe(self, column: pa.Array) -> bool:
        """Choose the candidates by some rows; return whether these have a value at all."""
        values, places = trimmed(column, self.missing)
        texts = values.take(np.unique(places[places >= 0])).to_pylist()
        if texts:
            readings = list(candidates(texts, self.setting))
            often = [sum(reading.plain(text) is not None for text in texts) for reading in readings]
            chosen = [r for r, n in zip(readings, often, strict=True) if n >= SHARE * len(texts)]
            self._readings = readings if self.setting is not None else chosen
        return bool(texts)

    @property
    def is_possible(self) -> bool:
        """Whether a reading may fit."""
        return bool(self._readings)

    def update(self, column: pa.Array) -> None:
        """Add a piece of the column."""
        texts, places = trimmed(column, self.missing)
        counts = np.bincount(places[places >= 0], minlength=len(texts))
        valid = counts > 0
        self.values += int(counts.sum())
        self._distinct += int(valid.sum())
        self._marks += len(column) - column.null_count - int(counts.sum()) - _empty(column)
        for reading in self._readings or ():
            fits, key = matches(texts, f"^(?:{reading.pattern})$") & valid, reading.pattern
            self._rows[key] = self._rows.get(key, 0) + int(counts[fits].sum())
            self._words[key] = self._words.get(key, 0) + int(fits.sum())
            if fits.any() and key not in self._examples:
                self._examples[key] = texts[int(np.argmax(fits))].as_py()
            if reading.kind == "truth" and len(texts) < 2 * sum(map(len, FAMILIES)):
                self._truths.update(text.lower() for text in texts.filter(pa.array(valid)).to_pylist())
        for key, pattern in EVIDENCE.items():
            self._evidence[key] += int(counts[matches(texts, pattern)].sum())

    @property
    def example(self) -> str:
        """A text that matches the reading."""
        return self._examples.get(self.reading.pattern, "") if self.reading else ""

    @property
    def wrong(self) -> int:
        """The number of values that do not match the reading."""
        return self.values - self._rows[self.reading.pattern] if self.reading else 0

    def choose(self, decimal: str | None) -> None:
        """Choose the reading that most rows match; `decimal` is the mark of the table's other numbers.

        Raises:
            DataError: the values have a unit, or two readings that differ.
        """
        by_rows = sorted(self._readings or (), key=lambda reading: -self._rows.get(reading.pattern, 0))
        for reading in by_rows:
            if self._fits(reading):
                self.reading = self._unrivalled(reading, decimal)
                return
        if self.setting is not None and by_rows:
            self.reading = by_rows[0]

    def _fits(self, reading: TextReading) -> bool:
        rows, words = self._rows.get(reading.pattern, 0), self._words.get(reading.pattern, 0)
        if reading.kind == "truth":
            of_family = any(
                self._truths <= family and self._truths & {"yes", "y", "true", "t", "1"} and len(self._truths) > 1
                for family in FAMILIES
            )
            has_both = bool(self._truths & {"no", "n", "false", "f", "0"})
            return self._truth and rows == self.values and of_family and has_both
        if reading.kind == "unit":
            return rows == self.values and words >= LEAST
        if self.setting is not None:
            return rows > 0
        if not self._marks and self.values in (self._evidence["plain"], self._evidence["iso"]):
            return False  # dates are dates anyway; the type of the column shows that its numbers are meant as words
        many_words = reading.kind == "number" and words >= LEAST and words > SHARE * self._distinct
        return rows > 0 and (rows >= SHARE * self.values or many_words)

    def _unrivalled(self, reading: TextReading, decimal: str | None) -> TextReading:
        form = rival_of(reading)
        same = [
            r for r in self._readings or () if r.form == form and (r.kind == "date" or r.name == reading.name) and form
        ]
        rivals = [r for r in same if self._rows.get(r.pattern, 0) == self._rows[reading.pattern]]
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
        raise ambiguous(self.name, self.example_of(readings), readings)

    def example_of(self, readings: Sequence[TextReading]) -> str:
        """Return a text that matches all readings."""
        return next(t for t in self._examples.values() if all(r.plain(t) is not None for r in readings))


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
