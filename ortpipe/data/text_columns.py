"""What a column of text holds: words, or numbers and dates that were written as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.arrow import matches, places
from ortpipe.data.position import Position
from ortpipe.data.raw_columns import ISO, MARKS
from ortpipe.errors import DataError, listing

if TYPE_CHECKING:
    import pyarrow as pa

SHARE = 0.5  # of a column's values: where so many are numbers, the others are mistakes and no categories
LEAST = 5  # different numbers in a column of text, from which on most of its values may be a mark such as ?
SHOWN = 3
MOST = 10_000  # different words that are compared with each other
NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$|^\s*0x[0-9a-f]+\s*$"
# as people write them: 1,234.5 or 1.234,5 or 1 234, 12 %, $12
WRITTEN = (
    r"^\s*[-+−(]?\s*[$€£¥]?\s*[-+−]?(\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+|\d{1,3}([ '\x{A0}]\d{3})+([.,]\d+)?"
    r"|\d+,\d+|\d+(\.\d+)?)\s*[%$€£¥)]?\s*$"
)
DATE = r"^\s*\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?\s*$|^\s*\d{1,2}([./])\d{1,2}[./]\d{4}( .*)?\s*$"

Cell = tuple[str, Position, int]  # a value and the row that holds it: a position is costly, and seldom shown


class TextColumn:
    """What was seen of the values of one column of text, in pieces.

    Attributes:
        rows: how many values are of which kind: numbers as a computer reads them, those as people write them too
            (alike), dates, those of ISO 8601 (iso), marks of a missing number, and all but these marks.
        values: how many different values of each piece are.
    """

    def __init__(self, name: str, *, kept: bool = False) -> None:  # kept: as an input of its own, it may be dates
        self.name, self.rows, self.values, self._kept = name, Counter[str](), Counter[str](), kept
        self._strange: list[Cell] = []  # the first values that are no numbers
        self._missing: list[Cell] = []  # the first marks, likewise
        self._no_dates: list[Cell] = []  # the first values that are neither dates of ISO 8601 nor marks
        self._forms: dict[str, str] = {}  # a word without capitals and spaces around it → its first form
        self._twins: dict[str, str] = {}  # such a word → another form

    def see(self, words: pa.Array, codes: np.ndarray, position: Position) -> None:
        """Take a piece of the column: its distinct words, and which of them each row holds."""
        counts = np.bincount(codes, minlength=len(words))
        number, written, date, iso = (matches(words, pattern) for pattern in (NUMBER, WRITTEN, DATE, ISO))
        none = (places(words, [""]) >= 0) & self._kept
        mark = (places(words, ["", *MARKS]) >= 0) & ~none
        kinds = {
            "all": ~mark & ~none,
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
        strange = ((self._strange, ~number & ~mark), (self._missing, mark), (self._no_dates, ~iso & ~mark))
        for shown, wrong in strange:
            for row in np.flatnonzero((wrong & ~none)[codes])[: SHOWN - len(shown)]:
                shown.append((words[int(codes[row])].as_py(), position, int(row)))

    def _compare(self, words: pa.Array) -> None:
        if len(self._forms) + len(words) > MOST:
            return
        for word in words.to_pylist():
            form = word.strip().lower()
            if self._forms.setdefault(form, word) != word:
                self._twins.setdefault(form, word)

    @property
    def twins(self) -> str | None:
        """What is said of words that people take for one."""
        if not self._twins:
            return None
        form, word = next(iter(self._twins.items()))
        more = f" ({len(self._twins) - 1:,} more such)" if len(self._twins) > 1 else ""
        alike = f"{self._forms[form]!r} and {word!r}{more} differ by capitals or spaces alone"
        return f"column {self.name!r}: {alike}, and each is a word of its own"

    @property
    def mostly_numbers(self) -> bool:
        """Whether so many values are numbers, or so many different ones, that the others are mistakes or marks."""
        different = self.values["alike"] >= LEAST and self.values["alike"] > SHARE * self.values["all"]
        return self.rows["all"] > 0 and (self.rows["alike"] >= SHARE * self.rows["all"] or different)

    @property
    def all_numbers(self) -> bool:
        """Whether a column of text holds numbers alone: whoever wrote its type wanted words."""
        return 0 < self.rows["all"] == self.rows["numbers"] and not self.rows["marks"]

    @property
    def notes(self) -> list[str]:
        """What is said of a column of numbers whose type is text."""
        said = "is of text and holds numbers alone: each is read as a word; write them as numbers if not"
        notes = [f"column {self.name!r} {said}"] if self.all_numbers else []
        notes += [self.twins] if self.twins is not None else []
        if self._kept and self._missing:
            marks = f"{_shown(self._missing[:1])}, {self.rows['marks']:,} times in all, is read as a word"
            notes.append(
                f"column {self.name!r}: {marks}; name it in data.source.missing if it marks a missing value: pandas, "
                "and whoever serves CSV with it, reads it as one"
            )
        return notes

    @property
    def are_dates(self) -> bool:
        """Whether an input of its own is a column of dates: its text is that of ISO 8601 alone."""
        return self._kept and 0 < self.rows["all"] == self.rows["iso"] and not self.rows["marks"]

    def refuse(self) -> None:
        """Refuse a column of numbers with a few other values among them, and one of dates."""
        rows, way_out = self.rows, f"or, {categorical_fix(self.name)}."
        mostly_dates = rows["all"] > 0 and rows["dates"] >= SHARE * rows["all"] and not self.are_dates
        if mostly_dates and self._kept:
            raise DataError(
                "A column of dates holds those of ISO 8601 alone, such as 2013-01-31 or 2013-01-31T05:00.",
                got=f"column {self.name!r}: {_shown(self._no_dates or self._missing)}",
                fix=f"Write them so; name what marks a missing value, as in {{at}}missing=['?']; {way_out}",
            )
        if mostly_dates:
            raise DataError(
                "A column holds numbers, text or truth values.",
                got=f"dates in column {self.name!r}: {_shown(self._strange[:1])}",
                fix=f"Write dates as numbers, leave the column out of {{at}}inputs, {way_out}",
            )
        if not self.mostly_numbers or self.all_numbers:
            return
        count = rows["all"] - rows["numbers"] if self._strange else rows["marks"]
        shown = self._strange or self._missing
        more = f", and {count - len(shown):,} more" if count > len(shown) else ""
        raise DataError(
            "A column most of whose values, or different values, are numbers holds numbers alone.",
            got=f"{count:,} of {rows['all'] + rows['marks']:,} values of column {self.name!r} are not numbers: "
            f"{_shown(shown)}{more}",
            fix=f"Write plain numbers such as 1234.5; name what marks a missing value, as in {{at}}missing=['?']; "
            f"{way_out}",
        )


def _shown(cells: list[Cell]) -> str:
    return ", ".join(f"{value!r} in {position(row)}" for value, position, row in cells)


def categorical_fix(name: str) -> str:
    """Return what to do about a column of words that look like something else."""
    return f"if its values are words, list it: {listing('{at}categorical', name)}"


def reject_text(column: pa.Array, name: str, position: Position) -> None:
    """Refuse text where only numbers serve, naming the first value that is none."""
    row = int(np.argmin(matches(column.cast("string"), NUMBER)))
    raise DataError(
        "Row weights, and labels of several columns, are numbers.",
        got=f"{column[row].as_py()!r} in column {name!r}, {position(row)}",
        fix="Correct it, name what marks a missing value in {at}missing, or choose another column.",
    )
