"""Messages and notes about a split."""

from typing import NoReturn

from ortpipe.data.config import SplitConfig
from ortpipe.data.rows import RowSet
from ortpipe.data.stream import Stream
from ortpipe.errors import DataError


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
