"""The stratified split: rows of each class are drawn separately."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from ortpipe.data.faults import changed_error
from ortpipe.data.parts import Draw, SplitConfig, cumulative_sums
from ortpipe.errors import DataError

CLASSES = 2**16  # at most


def stratified_draw(config: SplitConfig, test: int, validation: int, labels: Iterable[Iterable[np.ndarray]]) -> Draw:
    """Return the draw of `test` and `validation` rows; `labels` are those of each group's rows in pieces."""
    groups = [_count(pieces) for pieces in labels]
    values = sorted(set().union(*groups))
    table = np.array([[group[value] for value in values] for group in groups])
    sizes = table.sum(axis=0)
    least = min(count for count in (int(sizes.sum()) - test - validation, validation, test) if count)
    if sizes.min() < 2:
        raise _too_few_error(f"one row of class {values[int(sizes.argmin())]!r}")
    if len(values) > least:
        raise _too_few_error(f"{len(values)} classes, but a part of {least} rows")
    tests = _apportion(test, sizes)
    held_out = tests + _apportion(validation, sizes - tests)
    quotas = list(zip(sizes.tolist(), held_out.tolist(), tests.tolist(), strict=True))
    return Draw(config, quotas, {value: number for number, value in enumerate(values)}, cumulative_sums(table))


def set_parts_by_class(draw: Draw, codes: np.ndarray, free: np.ndarray, label: np.ndarray, seen: np.ndarray) -> None:
    """Set the parts of the rows `free` with these labels in `codes`, class by class, and count them in `seen`."""
    assert draw.classes is not None
    values, inverse = _distinct(label)
    rows_by_class = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    for value, rows in zip(values, rows_by_class, strict=True):
        if value not in draw.classes:
            raise changed_error(f"a row of the new class {value!r}")
        codes[free[rows]] = draw.next_parts(draw.classes[value], seen, len(rows))


def _distinct(label: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Return the distinct labels, sorted (tuples if of several columns), and each row's place among them."""
    array = np.array(label.tolist()) if label.dtype == object else label
    if array.ndim > 2:
        rule, actual = "A stratified split needs one class per row.", f"labels of shape {array.shape}"
        raise DataError(rule, key="stratify", got=actual, fix="Set {key}=false.")
    values, inverse = np.unique(array, axis=0 if array.ndim > 1 else None, return_inverse=True)
    return [tuple(value) if isinstance(value, list) else value for value in values.tolist()], inverse.reshape(-1)


def _count(pieces: Iterable[np.ndarray]) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for label in pieces:
        values, inverse = _distinct(label)
        counts.update(dict(zip(values, np.bincount(inverse, minlength=len(values)).tolist(), strict=True)))
        if len(counts) > CLASSES:
            raise _too_few_error(f"more than {CLASSES:,} different labels")
    return counts


def _too_few_error(actual: str) -> DataError:
    rule = "A stratified split needs rows of every class in every part."
    return DataError(rule, key="stratify", got=actual, fix="Set {key}=false.")


def _apportion(count: int, sizes: np.ndarray) -> np.ndarray:
    """Return each class's share of a count: count · size / total, rounded to add up (largest remainders).

    >>> _apportion(5, np.array([10, 10, 2])).tolist()
    [2, 2, 1]
    """
    shares, remainders = np.divmod(count * sizes, sizes.sum())
    shares[np.argsort(-remainders, kind="stable")[: count - shares.sum()]] += 1
    return shares
