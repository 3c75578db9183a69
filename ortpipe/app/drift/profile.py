"""The profile of rows: for each column and label its kind, missing values, range and distribution, bounded in size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import numpy as np

from ortpipe import Data, Rows
from ortpipe.bounded import parse_json, read_below
from ortpipe.data import RowSet
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write
from ortpipe.pipeline.events import Event, RunFinished
from ortpipe.settings import Times, checked

FILE = "profile.json"
FORMAT = 1
ROWS = 20_000  # rows that are read per part; of more, evenly spaced ones
COLUMNS = 1000
VALUES, ALL_VALUES = 128, 8000  # numbers that are kept of a column, and of all columns together
WORDS = 100  # the most frequent words that are kept
BINS = 10  # of numbers, with about equally many training rows
LONGEST = 200  # letters of a word

Kind = Literal["number", "word", "date"]


@dataclass(frozen=True)
class Column:
    """A column in numbers; a column of words counts its most frequent ones, and a column of numbers its bins.

    Attributes:
        kind: numbers, words, or dates.
        rows: the number of rows that were read.
        missing: the number of them without a value.
        least, most: the range of the numbers.
        edges: the upper ends of all bins but the last.
        counts: the values per bin; of words, per word and of all others.
        values: evenly spaced values of the sorted numbers.
        words: the words.
    """

    kind: Kind
    rows: Times
    missing: Times
    least: float | None = None
    most: float | None = None
    edges: tuple[float, ...] = ()
    counts: tuple[Times, ...] = ()
    values: tuple[float, ...] = ()
    words: tuple[str, ...] = ()

    @classmethod
    def checked(cls, facts: Mapping[str, Any]) -> Column:
        """Return the column of a file, which may be a stranger's."""
        hints = get_type_hints(cls, include_extras=True)
        column = cls(**{name: checked(value, hints[name], name) for name, value in facts.items()})
        bins = {"number": len(column.edges) + 1, "word": len(column.words) + 1, "date": 0}[column.kind]
        if len(column.counts) != bins or column.missing > column.rows or [*column.edges] != sorted(column.edges):
            raise ValueError(f"{len(column.counts)} counts, not {bins}")
        return column

    @property
    def closed(self) -> bool:
        """Whether the words are all words of the rows."""
        return self.kind == "word" and self.counts[-1] == 0


class Values(NamedTuple):
    """A column's kind, and its values: numbers (nan if missing), or text ("" if missing)."""

    kind: Literal["number", "word", "date", "class"]  # integer labels are classes, or numbers if there are many
    array: np.ndarray

    def typed(self, kind: Kind | None = None) -> Values:
        """Return classes as words or numbers: as `kind`, by default by their count."""
        if self.kind != "class":
            return self
        if kind == "number" or (kind is None and len(np.unique(self.array)) > WORDS):
            return Values("number", self.array.astype(np.float64))
        return Values("word", self.array.astype(str))

    @property
    def present(self) -> np.ndarray:
        """The values that are not missing."""
        return self.array[~np.isnan(self.array)] if self.kind == "number" else self.array[self.array != ""]


def read_values(*parts: RowSet | None) -> dict[str, Values]:
    """Return the columns of rows and their labels, in parentheses: at most ROWS values per part."""
    arrays: dict[str, list[np.ndarray]] = {}
    kinds: dict[str, Any] = {}
    for part in filter(None, parts):
        for rows in part.pieces(ROWS):
            for name, (kind, array) in _columns(rows):
                kinds[name] = kind
                arrays.setdefault(name, []).append(array)
    return {name: Values(kinds[name], np.concatenate(pieces)) for name, pieces in arrays.items()}


def _columns(rows: Rows) -> Iterator[tuple[str, Values]]:
    """Yield each column; of arrays with more dimensions, a row's mean."""
    for name, array in rows.inputs.items():
        if name in rows.kept:
            yield name, _values(array, rows.kept[name].kind)
        elif array.ndim == 2 and array.shape[1] <= COLUMNS:
            names = rows.columns.get(name) or [f"{name}[{place}]" for place in range(array.shape[1])]
            yield from ((column, _values(array[:, place])) for place, column in enumerate(names))
        elif array.ndim == 1 or array.dtype.kind not in "OSU":
            yield name, _values(array if array.ndim == 1 else array.reshape(len(array), -1).mean(axis=1))
    for head, labels in {"": rows.label, **rows.heads}.items():
        name = f"label of {head}" if head else "label"
        for place, array in enumerate(labels.T) if labels.ndim == 2 else [(None, labels)]:
            kind = "class" if array.dtype.kind in "biu" else None
            yield f"({name})" if place is None else f"({name}[{place}])", _values(array, kind)


def _values(array: np.ndarray, kind: Any = None) -> Values:
    if kind == "class":
        return Values(kind, array)
    if array.dtype.kind in "OSU":
        return Values(kind or "word", array.astype(str))
    return Values("number", array.astype(np.float64))


def column_of(values: Values, most: int = VALUES) -> Column:
    """Return a column in numbers, with at most `most` of its values or words.

    >>> column = column_of(Values("word", np.array(["b", "a", "b", ""])))
    >>> column.rows, column.missing, column.words, column.counts
    (4, 1, ('b', 'a'), (2, 1, 0))
    """
    kind, array = values.typed()
    present = Values(kind, array).present
    rows, missing = len(array), len(array) - len(present)
    if kind == "date" or (kind == "number" and not len(present)):
        return Column(kind, rows, missing, counts=() if kind == "date" else (0,))
    if kind == "word":
        words, counts = np.unique(present, return_counts=True)
        order = np.argsort(-counts, kind="stable")[: min(WORDS, most)]
        order = order[[len(word) <= LONGEST for word in words[order]]]
        others = int(counts.sum() - counts[order].sum())
        return Column(kind, rows, missing, counts=(*counts[order].tolist(), others), words=tuple(words[order].tolist()))
    ordered = np.sort(present)
    edges = np.unique(np.quantile(ordered, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    edges = edges[edges < ordered[-1]]
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), most)).round().astype(int)
    ends = (float(ordered[0]), float(ordered[-1]))
    counts = binned(present, edges)
    return Column(
        "number", rows, missing, *ends, tuple(edges.tolist()), tuple(counts.tolist()), tuple(ordered[places].tolist())
    )


def binned(numbers: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the count of numbers per bin; an edge belongs to the bin below it."""
    return np.bincount(np.searchsorted(edges, numbers, side="left"), minlength=len(edges) + 1)


def profile_of(data: Data) -> dict[str, Column]:
    """Return the profile of the training rows: of a stream, of its sample, which needs no further reading."""
    columns = dict([*read_values(data.train.sample()).items()][-COLUMNS:])  # the labels are last
    most = min(VALUES, max(BINS, ALL_VALUES // max(1, len(columns))))
    return {name: column_of(values, most) for name, values in columns.items()}


@dataclass(frozen=True)
class Profiler:
    """Writes the profile of a run's training rows into its folder when the run has finished."""

    folder: Path
    data: Data = field(repr=False)

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, RunFinished):
            columns = {name: vars(column) for name, column in profile_of(self.data).items()}
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(column)}" for name, column in columns.items())
            atomic_write(self.folder / FILE, f'{{"format": {FORMAT}, "columns": {{\n{lines}\n}}}}\n')


def read_profile(folder: Path) -> Mapping[str, Column]:
    """Return the profile in a run's folder."""
    try:
        facts = parse_json(read_below(folder, FILE))
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}, not {FORMAT}")
        return {name: Column.checked(column) for name, column in facts["columns"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        rule, fix = f"A retrained run must have its {FILE}.", "Train it again: runs of this version write one."
        raise ConfigError(rule, got=error, fix=fix) from error
