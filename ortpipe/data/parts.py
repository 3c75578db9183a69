"""The parts of rows: how they are split, and the random draw, in which a part follows from a row's number."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.doors import later
from ortpipe.errors import ConfigError, DataError
from ortpipe.settings import Config, Seed, Share

if TYPE_CHECKING:
    from ortpipe.data.faults import changed_error
    from ortpipe.data.stratify import set_parts_by_class, stratified_draw
else:
    later(__name__)

PARTS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(len(PARTS))
BLOCK = 2**14  # rows that are drawn together


@dataclass(frozen=True)
class SplitConfig(Config):
    """How rows are split into train, validation and test.

    Attributes:
        test: a fraction of all rows; or the path of a file or folder, which is read like the source; null: none.
        validation: likewise.
        column: a column whose values are `train`, `validation` and `test`; then fractions are ignored.
        time: a column of dates or numbers: the latest rows are test rows, those before them validation rows.
        group: a column: rows of one group are in one part; fractions count groups.
        stratify: keep the classes' proportions in every part; null: if the labels are classes with enough rows.
        seed: of the random split by fractions.
    """

    test: Share | str | None = 0.25
    validation: Share | str | None = 0.0
    column: str | None = None
    time: str | None = None
    group: str | None = None
    stratify: bool | None = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        test, validation = self.fractions
        if test + validation >= 1:
            rule, fix = "{at}test and {at}validation must leave rows to train on.", "Let their sum be below 1."
            raise ConfigError(rule, key="test", got=f"test={test}, validation={validation}", fix=fix)
        ways = [name for name in ("column", "time", "group") if getattr(self, name) is not None]
        if len(ways) + bool(self.files) > 1 or (self.stratify and ways not in ([], ["column"])):
            rule = "A split takes its parts from a column, times, groups or files; only random ones are stratified."
            got = f"{', '.join(ways)}, files {self.files or 'none'}, stratify={self.stratify}"
            raise ConfigError(rule, key=ways[0], got=got, fix="Remove all but one of them.")

    @property
    def fractions(self) -> tuple[float, float]:
        """The fractions of test and validation rows to draw, 0 if a file or a column defines the part."""
        drawn = self.column is None and self.time is None and self.group is None
        test, validation = (f if isinstance(f, float) and drawn else 0.0 for f in (self.test, self.validation))
        return test, validation

    @property
    def files(self) -> dict[str, str]:
        """The paths of `validation` and `test`, if they are files."""
        return {part: path for part in PARTS[1:] if isinstance(path := getattr(self, part), str)}


@dataclass(frozen=True)
class Draw:
    """The random part of each row that the data do not assign to validation or test.

    It follows from the seed and the row's number: row k of N is in block ⌊k / BLOCK⌋, from which a proportional share
    of the held-out rows is drawn. A stratified split numbers the rows of each class separately.
    """

    config: SplitConfig  # the fractions and the seed
    quotas: Sequence[tuple[int, int, int]]  # per class: rows, held-out rows, test rows among these
    classes: Mapping[Any, int] | None  # label → class number, in sorted order; None: one class
    before: np.ndarray  # int [groups + 1, classes]: rows of each class before a group; the last are the totals

    def parts(self, label: np.ndarray, assigned: np.ndarray | None, seen: np.ndarray) -> np.ndarray:
        """Return the part of each row, int8 [N]: the one that the data assign, else a random one.

        `seen`, int [classes], counts the rows of each class so far; these rows are added to it.
        """
        codes = np.zeros(len(label), np.int8) if assigned is None else assigned.copy()
        free = np.flatnonzero(codes == 0)
        if not any(self.config.fractions) or not len(free):
            return codes
        if self.classes is None:
            codes[free] = self.next_parts(0, seen, len(free))
            return codes
        set_parts_by_class(self, codes, free, label[free], seen)
        return codes

    def next_parts(self, number: int, seen: np.ndarray, count: int) -> np.ndarray:
        """Return the parts of the next rows of a class."""
        first = int(seen[number])
        seen[number] += count
        if seen[number] > self.quotas[number][0]:
            raise changed_error(f"more rows than the {self.quotas[number][0]} that were counted")
        blocks = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
        codes = [_block(self.config.seed, number, block, *self.quotas[number]) for block in blocks]
        return np.concatenate(codes)[first % BLOCK :][:count]


@functools.lru_cache(maxsize=256)
def _block(seed: int, number: int, block: int, rows: int, held_out: int, tested: int) -> np.ndarray:
    """Return the parts of a block's rows: as many are held out, at random, as ⌊x · held_out / rows⌋ grows over it."""
    first, last = block * BLOCK, min((block + 1) * BLOCK, rows)
    held_out_before = [end * held_out // rows for end in (first, last)]
    tests_before = [end * tested // max(1, held_out) for end in held_out_before]
    codes = np.full(last - first, TRAIN, np.int8)
    order = np.random.default_rng([seed, number, block]).permutation(last - first)
    codes[order[: held_out_before[1] - held_out_before[0]]] = VALIDATION
    codes[order[: tests_before[1] - tests_before[0]]] = TEST
    return codes


def draw_of(config: SplitConfig, counts: np.ndarray, labels: Iterable[Iterable[np.ndarray]]) -> Draw:
    """Return the draw of a config; `counts`, int [groups], are the rows of each group that fractions may take.

    `labels`, those of each group's rows in pieces, are read only for a stratified split.
    """
    rows = int(counts.sum())
    test, validation = (round(fraction * rows) for fraction in config.fractions)
    for name, fraction, count in zip(("test", "validation"), config.fractions, (test, validation), strict=True):
        if fraction and (not count or test + validation >= rows):
            rule, fix = "Every part of the split must have rows.", "Choose larger fractions or give more rows."
            raise DataError(rule, key=name, got=f"split.{name}={fraction} of {rows} rows", fix=fix)
    if not config.stratify or not any(config.fractions):
        return Draw(config, [(rows, test + validation, test)], None, cumulative_sums(counts[:, None]))
    return stratified_draw(config, test, validation, labels)


def cumulative_sums(table: np.ndarray) -> np.ndarray:
    """Return the sums of the first 0, 1, 2, … rows."""
    return np.pad(np.cumsum(table, axis=0), ((1, 0), (0, 0)))
