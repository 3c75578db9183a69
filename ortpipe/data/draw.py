"""Which rows fractions take: drawn by each row's number, so that no list of rows is kept."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe.data.config import PARTS, SplitConfig
from ortpipe.errors import DataError

TRAIN, VALIDATION, TEST = range(len(PARTS))
BLOCK = 2**14  # rows that are drawn together
CLASSES = 2**16  # of a stratified split at most


@dataclass(frozen=True)
class Draw:
    """The part of every row that the data leave to train on; it follows from the seed and the row's number.

    Row k of N is in block ⌊k / BLOCK⌋, from which its share of the held-out rows is drawn. A stratified split numbers
    the rows of each class for themselves.
    """

    config: SplitConfig  # the fractions and the seed
    quotas: Sequence[tuple[int, int, int]]  # of each class, its rows, how many are held out, and how many of these test
    classes: Mapping[Any, int] | None  # label → class, in sorted order; None: all rows are of one
    before: np.ndarray  # int [groups + 1, classes]: how many rows of each class precede a group, and at last all

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many rows to train on stay, and go to validation and to the test."""
        rows, held, tested = (sum(column) for column in zip(*self.quotas, strict=True))
        return rows - held, held - tested, tested

    @property
    def key(self) -> str:
        """What tells draws of the same rows apart."""
        config = self.config
        return f"{config.fractions} {config.stratify} {config.seed}" if any(config.fractions) else ""

    def parts(self, label: np.ndarray, said: np.ndarray | None, seen: np.ndarray) -> np.ndarray:
        """Return the part of each row, int8 [N]: `said` by the data, or else drawn.

        `seen`, int [classes], is how many rows came before, and takes these in.
        """
        codes = np.zeros(len(label), np.int8) if said is None else said.copy()
        free = np.flatnonzero(codes == 0)
        if not any(self.config.fractions) or not len(free):
            return codes
        if self.classes is None:
            codes[free] = self._next(0, seen, len(free))
            return codes
        values, inverse = _distinct(label[free])
        of_each = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
        for value, rows in zip(values, of_each, strict=True):
            if value not in self.classes:
                raise _changed(f"a row of class {value!r}, of which there was none")
            codes[free[rows]] = self._next(self.classes[value], seen, len(rows))
        return codes

    def check_group(self, group: int, seen: np.ndarray) -> None:
        """Raise if a group that was read to its end had other rows, or others of a class, than when it was counted."""
        if any(self.config.fractions) and (seen != self.before[group + 1]).any():
            raise _changed(f"other rows, or labels, in group {group + 1} than when they were counted")

    def _next(self, number: int, seen: np.ndarray, count: int) -> np.ndarray:
        """Return the parts of the next rows of a class."""
        first = int(seen[number])
        seen[number] += count
        if seen[number] > self.quotas[number][0]:
            raise _changed(f"more rows than the {self.quotas[number][0]} that were there")
        start = first // BLOCK
        blocks = range(start, (first + count - 1) // BLOCK + 1)
        drawn = [_block(self.config.seed, number, block, *self.quotas[number]) for block in blocks]
        return np.concatenate(drawn)[first - start * BLOCK :][:count]


@functools.lru_cache(maxsize=256)
def _block(seed: int, number: int, block: int, rows: int, held: int, tested: int) -> np.ndarray:
    """Return the parts of a block's rows: those that the cumulative shares ⌊x · held / rows⌋ add in it, at random."""
    first, last = block * BLOCK, min((block + 1) * BLOCK, rows)
    out = [end * held // rows for end in (first, last)]
    tests = [end * tested // max(1, held) for end in out]
    codes = np.full(last - first, TRAIN, np.int8)
    order = np.random.default_rng([seed, number, block]).permutation(last - first)
    codes[order[: out[1] - out[0]]] = VALIDATION
    codes[order[: tests[1] - tests[0]]] = TEST
    return codes


def draw_of(config: SplitConfig, counts: np.ndarray, labels: Iterable[Iterable[np.ndarray]]) -> Draw:
    """Return the draw of a config: `counts`, int [groups], are the rows to train on of each group.

    `labels`, group by group those of its rows, in pieces, are read for a stratified split alone.
    """
    rows = int(counts.sum())
    test, validation = (round(fraction * rows) for fraction in config.fractions)
    for name, fraction, count in zip(("test", "validation"), config.fractions, (test, validation), strict=True):
        if fraction and (not count or test + validation >= rows):
            rule, fix = "Every part of the split must have rows.", "Choose larger fractions or give more rows."
            raise DataError(rule, key=name, got=f"split.{name}={fraction} of {rows} rows", fix=fix)
    if not config.stratify or not any(config.fractions):
        return Draw(config, [(rows, test + validation, test)], None, _cumulative_sums(counts[:, None]))
    groups = [_count(pieces) for pieces in labels]
    values = sorted(set().union(*groups))
    table = np.array([[group[value] for value in values] for group in groups])
    sizes = table.sum(axis=0)
    least = min(count for count in (rows - test - validation, validation, test) if count)
    if sizes.min() < 2:
        raise _too_few(f"one row of class {values[int(sizes.argmin())]!r}")
    if len(values) > least:
        raise _too_few(f"{len(values)} classes, and a part of {least} rows")
    tests = _apportion(test, sizes)
    held = tests + _apportion(validation, sizes - tests)
    quotas = list(zip(sizes.tolist(), held.tolist(), tests.tolist(), strict=True))
    return Draw(config, quotas, {value: number for number, value in enumerate(values)}, _cumulative_sums(table))


def _cumulative_sums(table: np.ndarray) -> np.ndarray:
    """Return the sums of the first 0, 1, 2, … rows."""
    return np.pad(np.cumsum(table, axis=0), ((1, 0), (0, 0)))


def _distinct(label: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Return the distinct labels, sorted (of several columns as tuples), and each row's place among them."""
    array = np.array(label.tolist()) if label.dtype == object else label
    if array.ndim > 2:
        rule, got = "A stratified split needs rows that are of a class.", f"labels of shape {array.shape}"
        raise DataError(rule, key="stratify", got=got, fix="Set {key}=false.")
    values, inverse = np.unique(array, axis=0 if array.ndim > 1 else None, return_inverse=True)
    return [tuple(value) if isinstance(value, list) else value for value in values.tolist()], inverse.reshape(-1)


def _count(pieces: Iterable[np.ndarray]) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for label in pieces:
        values, inverse = _distinct(label)
        counts.update(dict(zip(values, np.bincount(inverse, minlength=len(values)).tolist(), strict=True)))
        if len(counts) > CLASSES:
            raise _too_few(f"more than {CLASSES:,} different labels")
    return counts


def _changed(got: str) -> DataError:
    fix = "Start again, and leave the files as they are meanwhile."
    return DataError("Rows are those that the data had when they were split.", got=got, fix=fix)


def _too_few(got: str) -> DataError:
    rule = "A stratified split needs rows of every class in every part."
    return DataError(rule, key="stratify", got=got, fix="Set {key}=false.")


def _apportion(count: int, sizes: np.ndarray) -> np.ndarray:
    """Return each class's share of a count: count · size / total, rounded so that they add up (largest remainders).

    >>> _apportion(5, np.array([10, 10, 2])).tolist()
    [2, 2, 1]
    """
    shares, remainders = np.divmod(count * sizes, sizes.sum())
    shares[np.argsort(-remainders, kind="stable")[: count - shares.sum()]] += 1
    return shares
