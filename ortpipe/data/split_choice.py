"""Splits by fold, and warnings about random splits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Data, Rows
from ortpipe.data.split import split
from ortpipe.data.split_cases import are_classes
from ortpipe.doors import later
from ortpipe.errors import DataError

if TYPE_CHECKING:  # they import scikit-learn
    from ortpipe.data.assign import Fold, by_key, fold_of, in_memory
    from ortpipe.data.cleaning import names_id
else:
    later(__name__)

FEWEST_IDS, ROWS_PER_ID = 10, 1.5  # distinct values of such a column and rows per value, for a warning


def split_fold(rows: RowSet, config: SplitConfig, fold: Fold) -> Data:
    """Return the data whose test rows are those of a fold; fractions of validation rows are of the others."""
    if config.column is not None or config.files:
        rule, fix = "Folds need a split by fractions, time or group.", "Remove split.column and files, or the folds."
        raise DataError(rule, got=f"column={config.column}, files {config.files or 'none'}", fix=fix)
    if config.time is not None or config.group is not None:
        return split(
            by_key(rows, config, fold), dataclasses.replace(config, time=None, group=None, test=None, validation=None)
        )
    rows, stratify = in_memory(rows), config.stratify
    if stratify is None:
        stratify = are_classes(rows) and int(np.unique(rows.label, return_counts=True)[1].min()) >= fold[1]
    config = dataclasses.replace(config, stratify=stratify)
    return split(rows.replace(part=fold_of(rows.label, config, *fold)), dataclasses.replace(config, test=None))


def with_key(source: Any, config: SplitConfig) -> Any:
    """Return a source that also reads the column of times or groups, if the source lists its columns."""
    key, inputs = config.time or config.group, getattr(source, "inputs", None)
    if key is None or inputs is None or key in inputs:
        return source
    return dataclasses.replace(source, inputs={**inputs, key: (key,)} if hasattr(inputs, "items") else (*inputs, key))


def warnings_of(rows: RowSet, config: SplitConfig) -> tuple[str, ...]:
    """Return a note for a random split of a table that has dates or repeated ids: such a split may leak."""
    if not isinstance(rows, Rows) or not any(config.fractions):
        return ()
    for name, column in rows.kept.items():
        if column.kind == "date":
            return (
                f"warning: the split is random, and column {name!r} holds dates; to test on the latest rows, set "
                f"data.split.time={name}",
            )
        values = rows.inputs[name]
        if names_id(name) and (values.dtype.kind == "O" or (values % 1 == 0).all()):
            count = len(np.unique(values.astype(str)))
            if count >= FEWEST_IDS and len(values) >= ROWS_PER_ID * count:
                return (
                    f"warning: the split is random, and {len(values):,} rows share {count:,} values of column "
                    f"{name!r}; to keep them together, set data.split.group={name}",
                )
    return ()
