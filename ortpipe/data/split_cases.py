"""The split of labels that are classes: every part has the same shares of them."""

import dataclasses
from collections.abc import Callable

import numpy as np

from ortpipe.data.config import SplitConfig
from ortpipe.data.rows import Data, RowSet
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
