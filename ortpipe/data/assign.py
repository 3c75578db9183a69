"""Parts by time, by group or by fold: scikit-learn's splitters choose the rows."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
from sklearn import model_selection

from ortpipe.data.float32 import lost_digits
from ortpipe.data.parts import PARTS, TEST, TRAIN, VALIDATION, SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows
from ortpipe.data.stream import Stream
from ortpipe.errors import DataError

UNIT, EPOCH = datetime.timedelta(microseconds=1), datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
Fold = tuple[int, int]  # its number from 0, and their count


def by_key(rows: RowSet, config: SplitConfig, fold: Fold | None = None) -> RowSet:
    """Return rows with their parts by time or group, without that column as an input; add a note about it.

    With a fold, its rows are the test rows; by time, later rows are left out. Streamed rows stay on disk.
    """
    rows = rows if fold is None else in_memory(rows)
    pieces = rows.read() if isinstance(rows, Stream) else [in_memory(rows)]
    key = config.time or config.group or ""
    if config.time is not None:
        times = np.concatenate([_times(piece, key) for piece in pieces])
        part = _by_time(times, config) if fold is None else _time_fold(times, config, *fold)
        note = f"split by time: the latest rows by column {key!r}, which is no input, are test rows"
    else:
        of_pieces = [np.unique(_column(piece, key, "group").astype(str), return_inverse=True) for piece in pieces]
        names = np.unique(np.concatenate([words for words, _ in of_pieces]))
        groups = np.concatenate([np.searchsorted(names, words)[places.reshape(-1)] for words, places in of_pieces])
        part = _by_group(groups, config, fold)
        note = f"split by group: {groups.max() + 1:,} groups of column {key!r}, which is no input"
    for number, share in enumerate((1, config.validation, 1 if fold is not None else config.test)):
        if share and not (part == number).any():
            _reject_few(config, f"no {PARTS[number]} rows")
    if [*rows.head(1).inputs] == [key]:
        fix = "Add columns to the data."
        raise DataError("The column of the split must not be the only input.", got=key, fix=fix)
    if isinstance(rows, Stream):
        return rows.with_parts(key, part.astype(np.int8), note)
    rows = in_memory(rows)
    inputs, raw_columns = ({name: v for name, v in of.items() if name != key} for of in (rows.inputs, rows.kept))
    used = part >= 0
    notes = lost_digits(rows) if rows.notes is None else rows.notes
    chosen = rows.replace(inputs=inputs, kept=raw_columns).take(used)
    return chosen.replace(part=part[used].astype(np.int8), notes=(*notes, note))


def in_memory(rows: RowSet) -> Rows:
    """Return the rows; raise if they are streamed."""
    if isinstance(rows, Rows):
        return rows
    rule = "Folds need rows in memory."
    fix = "Set {@data.source.stream}=false if they fit, or split once by fractions, time or group, without folds."
    raise DataError(rule, got=f"{len(rows):,} streamed rows", fix=fix)


def _column(rows: Rows, name: str, key: str) -> np.ndarray:
    """Return the values of a column, none of them missing."""
    if name not in rows.inputs or rows.inputs[name].ndim != 1:
        names = ", ".join(name for name, array in rows.inputs.items() if array.ndim == 1)
        raise DataError("{key} must name a column of the data.", key=key, got=repr(name), fix=f"They are {names}.")
    values = rows.inputs[name]
    missing = values == "" if values.dtype.kind in "OU" else np.isnan(values.astype(np.float64))
    if missing.any():
        actual = f"{int(missing.sum()):,} rows without one, the first in row {int(missing.argmax())} (from 0)"
        raise DataError("{key} must have a value in every row.", key=key, got=actual, fix="Fill or drop these rows.")
    return values


def _times(rows: Rows, name: str) -> np.ndarray:
    """Return the times of rows as numbers that keep their order."""
    values = _column(rows, name, "time")
    if values.dtype.kind in "biuf":
        return values
    distinct, places = np.unique(values.astype(str), return_inverse=True)
    try:
        moments = [datetime.datetime.fromisoformat(text) for text in distinct.tolist()]
    except ValueError as error:
        rule, fix = "{key} must be a column of dates (ISO 8601) or numbers.", "Choose another column, or convert it."
        raise DataError(rule, key="time", got=f"column {name!r}: {error}", fix=fix) from error
    utc = [moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC) for moment in moments]
    return np.array([(moment - EPOCH) // UNIT for moment in utc], np.int64)[places.reshape(-1)]


def _by_time(times: np.ndarray, config: SplitConfig) -> np.ndarray:
    """Return parts in the order of time; rows of one time are in one part."""
    part, order = np.full(len(times), TRAIN), np.sort(times)
    tested, validated = (round(float(share or 0) * len(times)) for share in (config.test, config.validation))
    for number, count in ((VALIDATION, tested + validated), (TEST, tested)):
        if count:
            part[times >= order[max(0, len(times) - count)]] = number
    return part


def _by_group(groups: np.ndarray, config: SplitConfig, fold: Fold | None) -> np.ndarray:
    """Return parts in which no group is in two; fractions count groups."""
    part = np.full(len(groups), TRAIN)
    try:
        if fold is not None:
            splits = model_selection.GroupKFold(fold[1]).split(groups, groups=groups)
            part[list(splits)[fold[0]][1]] = TEST
        elif config.test:
            _hold_out(part, groups, float(config.test), TEST, config.seed)
        if config.validation:
            share = float(config.validation) / (1 if fold is not None else 1 - float(config.test or 0))
            _hold_out(part, groups, share, VALIDATION, config.seed)
    except ValueError as error:
        _reject_few(config, f"{len(np.unique(groups))} groups: {error}")
    return part


def _hold_out(part: np.ndarray, groups: np.ndarray, share: float, number: int, seed: int) -> None:
    """Set the part of the rows of some groups that are still to train."""
    free = np.flatnonzero(part == TRAIN)
    splitter = model_selection.GroupShuffleSplit(1, test_size=share, random_state=seed % 2**32)
    [(_, places)] = splitter.split(free, groups=groups[free])
    part[free[places]] = number


def fold_of(label: np.ndarray, config: SplitConfig, number: int, count: int) -> np.ndarray:
    """Return the parts of a fold of a random split: its rows to test, the others to train."""
    part = np.full(len(label), TRAIN, np.int8)
    kind = model_selection.StratifiedKFold if config.stratify else model_selection.KFold
    try:
        splits = kind(count, shuffle=True, random_state=config.seed % 2**32).split(label, label)
        part[list(splits)[number][1]] = TEST
    except ValueError as error:
        _reject_few(config, error)
    return part


def _time_fold(times: np.ndarray, config: SplitConfig, number: int, count: int) -> np.ndarray:
    """Return the parts of a fold by time: the rows before it to train, later ones unused (-1)."""
    order = np.argsort(times, kind="stable")
    try:
        before, tested = list(model_selection.TimeSeriesSplit(count).split(order))[number]
    except ValueError as error:
        _reject_few(config, error)
    part = np.full(len(times), -1)
    part[order[tested]] = TEST
    earlier = order[before]
    earlier = earlier[times[earlier] < times[order[tested[0]]]]  # no row of a time that is tested
    part[earlier] = TRAIN
    if config.validation and len(earlier):
        validated = round(float(config.validation) * len(earlier))
        part[earlier[times[earlier] >= times[earlier[max(0, len(earlier) - validated)]]]] = VALIDATION
    return part


def _reject_few(config: SplitConfig, actual: Any) -> Any:
    key = "time" if config.time is not None else "group" if config.group is not None else "test"
    rule, fix = "Every part of the split must have rows.", "Choose larger fractions, fewer folds, or give more rows."
    raise DataError(rule, key=key, got=actual, fix=fix)
