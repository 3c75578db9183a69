"""Splits by class, if the labels are classes, and messages and notes about a split."""

import dataclasses
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Data
from ortpipe.data.stream import Stream
from ortpipe.errors import DataError

MOST_STRATA, ROWS_PER_STRATUM = 100, 5  # rows are split by integer labels with so few distinct ones, and so many rows


def split_classes(rows: RowSet, config: SplitConfig, split: Callable[[RowSet, SplitConfig], Data]) -> Data:
    """Split rows by class if the labels are classes, each with enough rows; `config.stratify` is null."""
    note = ""
    if any(config.fractions) and are_classes(rows):
        try:
            return split(rows, dataclasses.replace(config, stratify=True))
        except DataError as error:
            if not str(error.key).endswith("stratify"):
                raise
            note = f"the split is not stratified by class: {error.got}"
    data = split(rows, dataclasses.replace(config, stratify=False))
    return dataclasses.replace(data, notes=(*data.notes, note)) if note else data


def are_classes(rows: RowSet) -> bool:
    """Return whether labels are classes: text, truth values, or few distinct integers for the number of rows."""
    labels = rows.labels
    if labels is None or (labels.ndim > 1 and labels.size > len(labels)) or labels.dtype.kind == "f":
        return False
    return labels.dtype.kind not in "iu" or len(np.unique(labels)) <= min(MOST_STRATA, len(rows) // ROWS_PER_STRATUM)


def reject_parts(config: SplitConfig) -> NoReturn:
    """Raise for a split by column or file of rows whose source has none."""
    raise DataError(
        "A split by column or by file needs a source of columns or files.",
        got=f"split.column={config.column}, split files {config.files or 'none'}",
        fix="Split by fractions, or choose a source such as csv, parquet or npz.",
    )


def reject_empty(name: str, config: SplitConfig) -> NoReturn:
    """Raise for a part without rows."""
    where = f"column {config.column!r}" if config.column is not None else config.files.get(name, "the source")
    fix = f"Mark some rows as {name!r} in it." if config.column is not None else "Give a file with rows."
    raise DataError("Every part of the split must have rows.", got=f"no {name} rows in {where}", fix=fix)


def notes_of_stream(train: RowSet) -> tuple[str, ...]:
    """Return notes about a window that does not hold all rows, and about a temporary file."""
    notes = train.spill_notes() if isinstance(train, Stream) else ()
    if train.window is None or train.window >= len(train):
        return notes
    note = (
        f"{len(train):,} training rows are shuffled through a window of {train.window:,} rows, and at most as many "
        "are used to fit scikit-learn (data.source.window): rows on disk should not be sorted by label"
    )
    return (note, *notes)
