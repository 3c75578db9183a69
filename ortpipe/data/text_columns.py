"""What a column of text holds: words, or numbers and dates that were written as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.arrow import matches, places
from ortpipe.errors import DataError, listing

if TYPE_CHECKING:
    import pyarrow as pa

SHARE = 0.5  # of a column's values: where so many are numbers, the others are mistakes and no categories
LEAST = 5  # different numbers in a column of text, from which on most of its values may be a mark such as ?
SHOWN = 3
NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$|^\s*0x[0-9a-f]+\s*$"
# as people write them: 1,234.5 or 1.234,5 or 1 234, 12 %, $12
WRITTEN = (
    r"^\s*[-+−(]?\s*[$€£¥]?\s*[-+−]?(\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+|\d{1,3}([ '\x{A0}]\d{3})+([.,]\d+)?"
    r"|\d+,\d+|\d+(\.\d+)?)\s*[%$€£¥)]?\s*$"
)
DATE = r"^\s*\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?\s*$|^\s*\d{1,2}([./])\d{1,2}[./]\d{4}( .*)?\s*$"
# what Arrow takes for a missing number, in a column of text as well
MISSING = ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"]
MISSING += ["N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"]


@dataclass
class TextColumn:
    """What was seen of the values of one column of text, in pieces.

    Attributes:
        name: the column's.
        rows: how many values there were, those that only mark a missing number aside.
        numbers: how many of them are numbers as a computer reads them; `alike`: those as people write them, too.
        values: how many different values each piece had, and `alike_values`: how many of them are numbers.
        dates: how many are dates.
        marks: how many mark a missing number.
        strange: the first values that are no numbers, each with its place.
        missing: the first marks, likewise.
    """

    name: str
    rows: int = 0
    numbers: int = 0
    alike: int = 0
    dates: int = 0
    marks: int = 0
    values: int = 0
    alike_values: int = 0
    strange: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def see(self, words: pa.Array, codes: np.ndarray, file: str, first: int) -> None:
        """Take a piece of the column: its distinct words, and which of them each row holds."""
        counts = np.bincount(codes, minlength=len(words))
        number, written, date = (matches(words, pattern) for pattern in (NUMBER, WRITTEN, DATE))
        mark = places(words, MISSING) >= 0
        self.rows += int(counts[~mark].sum())
        self.numbers += int(counts[number].sum())
        self.alike += int(counts[number | written].sum())
        self.values += int((~mark).sum())
        self.alike_values += int((number | written).sum())
        self.dates += int(counts[date].sum())
        self.marks += int(counts[mark].sum())
        for shown, wrong in ((self.strange, ~number & ~mark), (self.missing, mark)):
            for row in np.flatnonzero(wrong[codes])[: SHOWN - len(shown)]:
                shown.append(f"{words[int(codes[row])].as_py()!r} in row {first + row} of {file}")

    @property
    def mostly_numbers(self) -> bool:
        """Whether so many values are numbers, or so many different ones, that the others are mistakes or marks."""
        different = self.alike_values >= LEAST and self.alike_values > SHARE * self.values
        return self.rows > 0 and (self.alike >= SHARE * self.rows or different)

    @property
    def all_numbers(self) -> bool:
        """Whether a column of text holds numbers alone: whoever wrote its type wanted words."""
        return self.rows > 0 and self.numbers == self.rows and not self.marks

    @property
    def notes(self) -> list[str]:
        """What is said of a column of numbers whose type is text."""
        if not self.all_numbers:
            return []
        said = "is of text and holds numbers alone: each is read as a word; write them as numbers if not"
        return [f"column {self.name!r} {said}"]

    def refuse(self) -> None:
        """Refuse a column of numbers with a few other values among them, and one of dates."""
        fix = f"or, if its values are words, list it: {listing('data.source.categorical', self.name)}."
        if self.rows and self.dates >= SHARE * self.rows:
            raise DataError(
                "A column holds numbers, text or truth values.",
                got=f"dates in column {self.name!r}: {self.strange[0]}",
                fix=f"Write dates as numbers, leave the column out of data.source.inputs, {fix}",
            )
        if not self.mostly_numbers or self.all_numbers:
            return
        strange, count = (self.strange, self.rows - self.numbers) if self.strange else (self.missing, self.marks)
        more = f", and {count - len(strange):,} more" if count > len(strange) else ""
        raise DataError(
            "A column most of whose values, or different values, are numbers holds numbers alone.",
            got=f"{count:,} of {self.rows + self.marks:,} values of column {self.name!r} are not numbers: "
            f"{', '.join(strange)}{more}",
            fix=f"Write plain numbers such as 1234.5; name what marks a missing value, "
            f"as in data.source.missing=['?']; {fix}",
        )


def refuse_text(column: pa.Array, name: str, file: str, first: int) -> None:
    """Refuse text where only numbers serve, naming the first value that is none."""
    row = int(np.argmin(matches(column.cast("string"), NUMBER)))
    raise DataError(
        "Row weights, and labels of several columns, are numbers.",
        got=f"{column[row].as_py()!r} in column {name!r}, row {first + row} of {file}",
        fix="Correct it, name what marks a missing value in data.source.missing, or choose another column.",
    )
