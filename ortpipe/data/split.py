"""Loading a source and splitting its rows into train, validation and test."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from ortpipe.data.class_weight import ClassWeight, class_weights
from ortpipe.data.config import PARTS, SplitConfig
from ortpipe.data.draw import draw_of
from ortpipe.data.files import stamps
from ortpipe.data.float32 import LostDigits
from ortpipe.data.rows import Data, Rows, RowSet
from ortpipe.data.sources import SOURCES, Source
from ortpipe.data.tokens import TokensConfig
from ortpipe.errors import DataError, under
from ortpipe.settings import Config


@dataclass(frozen=True)
class DataConfig(Config):
    """Where rows come from, how they are split, how classes count, and how a text column is tokenized.

    Attributes:
        source: where rows come from.
        split: how rows are split into train, validation and test.
        tokens: how a text column is tokenized; null: not at all.
        class_weight: `balanced`, or {class: weight}: the factor of the class's rows in the loss, besides their own
            weights; metrics do not change.
    """

    source: Annotated[Source, SOURCES]
    split: SplitConfig = SplitConfig()
    tokens: TokensConfig | None = None
    class_weight: ClassWeight = None


def load(config: DataConfig) -> Data:
    """Read a source and split its rows."""
    before = stamps(getattr(config.source, "path", None), config.split)
    with under("source"):
        rows = config.source(config.split)
    rows = rows if config.tokens is None else config.tokens(rows)
    with under("split"):
        data = split(rows, config.split)
    weights = class_weights(config.class_weight, data.train)
    notes = (f"class weights: {', '.join(f'{name} {weight:.4g}' for name, weight in list(weights.items())[:20])}",)
    return dataclasses.replace(
        data, files=before, class_weight=weights, notes=(*data.notes, *(notes if weights else ()))
    )


def split(rows: RowSet, config: SplitConfig) -> Data:
    """Split rows by the parts that the data name, then the training rows among them by seeded fractions.

    Raises:
        DataError: a part would be empty, or a class has too few rows to stratify.
    """
    if isinstance(rows, Rows) and rows.part is None and (config.column is not None or config.files):
        raise DataError(
            "A split by column or by file needs a source of columns or files.",
            got=f"split.column={config.column}, split files {config.files or 'none'}",
            fix="Split by fractions, or choose a source such as csv, parquet or npz.",
        )
    counts = rows.counts
    for name, count in zip(PARTS, counts.sum(axis=0).tolist(), strict=True):
        if not count and (name == "train" or name in config.files):
            where = f"column {config.column!r}" if config.column is not None else config.files.get(name, "the source")
            fix = f"Mark some rows as {name!r} in it." if config.column is not None else "Give a file with rows."
            raise DataError("Every part of the split must have rows.", got=f"no {name} rows in {where}", fix=fix)
    labels = (
        (label if part is None else label[part == 0] for label, part in rows.read_labels([group]))
        for group in range(len(counts))
    )
    draw = draw_of(config, counts[:, 0], labels)
    train, validation, test = (rows.select(part, draw) for part in range(len(PARTS)))
    notes = rows.notes
    if notes is None:
        digits = LostDigits()
        for piece in rows.read():
            digits.update_rows(piece)
        notes = tuple(digits.notes())
    if train.window is not None and train.window < len(train):
        notes = (
            *notes,
            f"{len(train):,} training rows are shuffled through a window of {train.window:,} rows, and at most as many "
            "are used to fit scikit-learn (data.source.window): rows on disk should not be sorted by label",
        )
    notes = (*notes, *train.spill_notes())
    return Data(train, validation if len(validation) else None, test if len(test) else None, notes=notes)
