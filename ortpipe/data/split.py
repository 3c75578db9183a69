"""Splitting rows into train, validation and test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ortpipe.data.parts import PARTS, SplitConfig, draw_of
from ortpipe.data.rows import Data, Rows
from ortpipe.doors import later

if TYPE_CHECKING:
    from ortpipe.data.assign import by_key
    from ortpipe.data.float32 import lost_digits
    from ortpipe.data.row_set import RowSet
    from ortpipe.data.split_cases import notes_of_stream, reject_empty, reject_parts, split_classes
else:
    later(__name__)

EXACT = 2**24  # integers up to here are exact in float32


def split(rows: RowSet, config: SplitConfig) -> Data:
    """Split rows by the parts that the data name, then the training rows among them by seeded fractions.

    Raises:
        DataError: a part would be empty, or a class has too few rows to stratify.
    """
    if config.stratify is None:
        return split_classes(rows, config, split)
    if isinstance(rows, Rows) and rows.part is None and (config.column is not None or config.files):
        reject_parts(config)
    rows = by_key(rows, config) if config.time is not None or config.group is not None else rows
    counts = rows.counts
    for name, count in zip(PARTS, counts.sum(axis=0).tolist(), strict=True):
        if not count and (name == "train" or name in config.files):
            reject_empty(name, config)
    labels = (
        (label if part is None else label[part == 0] for label, part in rows.read_labels([group]))
        for group in range(len(counts))
    )
    draw = draw_of(config, counts[:, 0], labels)
    train, validation, test = (rows.select(part, draw) for part in range(len(PARTS)))
    notes = rows.notes
    if notes is None:
        notes = () if isinstance(rows, Rows) and _all_exact(rows) else lost_digits(rows)
    if train.window is not None:
        notes = (*notes, *notes_of_stream(train))
    return Data(train, validation if len(validation) else None, test if len(test) else None, notes=notes)


def _all_exact(rows: Rows) -> bool:
    """Return whether float32, the input type of most models, holds all numbers without loss."""
    arrays = [a for a in (rows.label, rows.sample_weight, *rows.inputs.values(), *rows.heads.values()) if a is not None]
    wide = [array for array in arrays if array.dtype.kind in "iuf" and array.dtype.itemsize >= 4]
    return all(a.dtype == np.float32 or (not (a > EXACT).any() and not (a < -EXACT).any()) for a in wide)
