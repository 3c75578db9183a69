"""Leave out the rows without a label."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ortpipe.data.arrow import as_numpy, is_text, places, plain_column
from ortpipe.data.groups import PIECE, Group


def labeled_rows(groups: Sequence[Group], labels: Sequence[str], missing: Sequence[str]) -> tuple[list[Group], int]:
    """Return the groups without the rows that lack one of their labels, and the number of these rows."""
    left_out = [_count(group, labels, missing) for group in groups]
    cut = [
        _cut(group, tuple(labels), missing) if count else group for group, count in zip(groups, left_out, strict=True)
    ]
    return cut, sum(left_out)


def _has_labels(batch: pa.RecordBatch, labels: Sequence[str], missing: Sequence[str]) -> np.ndarray:
    """Return which rows have all labels: no null, nan, empty text or mark of a missing value."""
    complete = np.ones(len(batch), bool)
    for name in labels:
        column = plain_column(batch.column(name))
        if is_text(column.type):
            complete &= places(column, [None, "", *missing]) < 0
        elif str(column.type) in ("halffloat", "float", "double"):
            complete &= ~np.isnan(as_numpy(column))
        else:
            complete &= column.is_valid().to_numpy(zero_copy_only=False)
    return complete


def _count(group: Group, labels: Sequence[str], missing: Sequence[str]) -> int:
    return sum(int((~_has_labels(batch, labels, missing)).sum()) for batch in group.read(list(labels), PIECE))


def _cut(group: Group, labels: Sequence[str], missing: Sequence[str]) -> Group:
    def read(columns: list[str], most: int) -> Iterator[pa.RecordBatch]:
        for batch in group.read(list(dict.fromkeys([*columns, *labels])), most):
            rows = batch.filter(pa.array(_has_labels(batch, labels, missing)))
            if len(rows):
                yield rows.select(columns)

    @functools.cache  # called for few rows, to show them
    def places_of_rows() -> np.ndarray:
        batches = group.read(list(labels), PIECE)
        return np.flatnonzero(np.concatenate([_has_labels(batch, labels, missing) for batch in batches]))

    return dataclasses.replace(group, read=read, position=lambda row: group.position(int(places_of_rows()[row])))
