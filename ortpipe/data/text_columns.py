"""Whether a text column holds words, or numbers and dates written as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.arrow import matches, places
from ortpipe.data.faults import SHOWN as CELLS
from ortpipe.data.faults import Cell, Faults, format_cells
from ortpipe.data.groups import Position
from ortpipe.data.raw_columns import ISO, MARKS
from ortpipe.errors import DataError
from ortpipe.quoting import listing

if TYPE_CHECKING:
    import pyarrow as pa

SHARE = 0.5  # of a column's values: if as many are numbers or dates, the others are mistakes, not categories
LEAST = 5  # distinct numbers: with as many, most other values may be a missing-value mark such as ?
MOST_WORDS = 10_000  # distinct words that are compared with each other
NUMBER = r"(?i)^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$|^\s*0x[0-9a-f]+\s*$"
# numbers as people write them: 1,234.5 or 1.234,5 or 1 234, 12 %, $12
WRITTEN = (
    r"^\s*[-+−(]?\s*[$€£¥]?\s*[-+−]?(\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+|\d{1,3}([ '\x{A0}]\d{3})+([.,]\d+)?"
    r"|\d+,\d+|\d+(\.\d+)?)\s*[%$€£¥)]?\s*$"
)
DATE = r"^\s*\d{4}-\d{1,2}-\d{1,2}([Tt ]\d{1,2}:\d{2}.*)?\s*$|^\s*\d{1,2}([./])\d{1,2}[./]\d{4}( .*)?\s*$"


class TextColumn:
    """Statistics of the values of one text column, collected in pieces.

    Attributes:
        rows: number of values by kind: `numbers` that Python parses, `alike` (those and numbers as people write
            them), `dates`, `iso` (dates of ISO 8601), `marks` of a missing value, and `all` but these marks.
        values: number of distinct values by kind, counted in each piece.
    """

    def __init__(self, name: str, *, raw: bool = False) -> None:  # raw: an input without encoding; it may hold dates
        self.name, self.rows, self.values, self._raw = name, Counter[str](), Counter[str](), raw
        self._non_numbers: list[Cell] = []  # the first values that are neither numbers nor marks
        self._marks: list[Cell] = []  # the first marks of a missing value
        self._non_dates: list[Cell] = []  # the first values that are neither dates of ISO 8601 nor marks
        self._forms: dict[str, str] = {}  # a word, stripped and in lower case → its first form
        self._variants: dict[str, str] = {}  # such a word → another form

    def update(self, words: pa.Array, codes: np.ndarray, position: Position) -> None:
        """Add a piece of the column: its distinct words, and each row's place among them."""
        counts = np.bincount(codes, minlength=len(words))
        number, written, date, iso = (matches(words, pattern) for pattern in (NUMBER, WRITTEN, DATE, f"^{ISO}$"))
        empty = (places(words, [""]) >= 0) & self._raw
        mark = (places(words, ["", *MARKS]) >= 0) & ~empty
        kinds = {
            "all": ~mark & ~empty,
            "numbers": number,
            "alike": number | written,
            "dates": date,
            "iso": iso,
            "marks": mark,
        }
        for kind, of_kind in kinds.items():
            self.rows[kind] += int(counts[of_kind].sum())
            self.values[kind] += int(of_kind.sum())
        self._compare(words)
        samples = ((self._non_numbers, ~number & ~mark), (self._marks, mark), (self._non_dates, ~iso & ~mark))
        for cells, wrong in samples:
            for row in np.flatnonzero((wrong & ~empty)[codes])[: CELLS - len(cells)]:
                cells.append((words[int(codes[row])].as_py(), position, int(row)))

    def _compare(self, words: pa.Array) -> None:
        if len(self._forms) + len(words) > MOST_WORDS:
            return
        for word in words.to_pylist():
            form = word.strip().lower()
            if self._forms.setdefault(form, word) != word:
                self._variants.setdefault(form, word)

    @property
    def variants_note(self) -> str | None:
        """The note about words that differ only by case or spaces, if there are any."""
        if not self._variants:
            return None
        form, word = next(iter(self._variants.items()))
        more = f" ({len(self._variants) - 1:,} more such pairs)" if len(self._variants) > 1 else ""
        pair = f"{self._forms[form]!r} and {word!r}{more} differ only by case or spaces"
        return f"column {self.name!r}: {pair}, but count as different words"

    @property
    def mostly_numbers(self) -> bool:
        """Whether so many values, or distinct values, are numbers that the others are mistakes or marks."""
        many_distinct = self.values["alike"] >= LEAST and self.values["alike"] > SHARE * self.values["all"]
        return self.rows["all"] > 0 and (self.rows["alike"] >= SHARE * self.rows["all"] or many_distinct)

    @property
    def all_numbers(self) -> bool:
        """Whether the text column holds only numbers: its type shows that they are meant as words."""
        return 0 < self.rows["all"] == self.rows["numbers"] and not self.rows["marks"]

    @property
    def notes(self) -> list[str]:
        """The notes about the column: numbers as text, words that are almost the same, possible missing values."""
        read_as_words = (
            "has type text but holds only numbers: each is read as a word; if it should be a number, write it as one"
        )
        notes = [f"column {self.name!r} {read_as_words}"] if self.all_numbers else []
        notes += [self.variants_note] if self.variants_note is not None else []
        if self._raw and self._marks:
            marks = f"{format_cells(self._marks[:1], 1)}, {self.rows['marks']:,} times in all, is read as a word"
            notes.append(
                f"column {self.name!r}: {marks}; name it in data.source.missing if it marks a missing value: pandas, "
                "and servers that parse CSV with it, read it as one"
            )
        return notes

    @property
    def are_dates(self) -> bool:
        """Whether a raw input holds dates: all of its text is ISO 8601."""
        return self._raw and 0 < self.rows["all"] == self.rows["iso"] and not self.rows["marks"]

    def error(self) -> DataError | None:
        """Return the error for a column of numbers with a few other values among them, or one of dates."""
        rows, way_out = self.rows, f"or, {categorical_fix(self.name)}."
        mostly_dates = rows["all"] > 0 and rows["dates"] >= SHARE * rows["all"] and not self.are_dates
        if mostly_dates and self._raw:
            count = rows["all"] + rows["marks"] - rows["iso"]
            return DataError(
                "A column of dates may hold only dates of ISO 8601, such as 2013-01-31 or 2013-01-31T05:00.",
                got=f"column {self.name!r}: {format_cells(self._non_dates or self._marks, count)}",
                fix=f"Convert them; name the marks of missing values, as in {{at}}missing=['?']; leave the "
                f"column out of {{at}}inputs; {way_out}",
            )
        if mostly_dates:
            return DataError(
                "A column may hold numbers, text or truth values.",
                got=f"dates in column {self.name!r}: {format_cells(self._non_numbers[:1], 1)}",
                fix=f"Convert dates to numbers, leave the column out of {{at}}inputs, {way_out}",
            )
        if not self.mostly_numbers or self.all_numbers:
            return None
        count = rows["all"] - rows["numbers"] if self._non_numbers else rows["marks"]
        cells = self._non_numbers or self._marks
        return DataError(
            "If most values, or most distinct values, of a column are numbers, all of them must be.",
            got=f"{count:,} of {rows['all'] + rows['marks']:,} values of column {self.name!r} are not numbers: "
            f"{format_cells(cells, count)}",
            fix=f"Write plain numbers such as 1234.5; name the marks of missing values, as in {{at}}missing=['?']; "
            f"{way_out}",
        )


def categorical_fix(name: str) -> str:
    """Return the fix for a column of words that look like numbers or dates."""
    return f"if its values are words, list it: {listing('{at}categorical', name)}"


def add_text(column: pa.Array, name: str, position: Position, faults: Faults) -> None:
    """Add the values that are no numbers in a column that must hold numbers."""
    rows = np.flatnonzero(~matches(column.cast("string"), NUMBER))
    cells = [(repr(column[row].as_py()), position, row) for row in rows[:CELLS].tolist()]
    rule = "Row weights, and labels in several columns, must be numbers."
    fix = "Correct it, such as 1 and 0 for yes and no; name marks of missing values in {at}missing; or choose another."
    faults.add(rule, name, cells, len(rows), fix)
