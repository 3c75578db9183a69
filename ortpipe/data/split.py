"""Dividing rows in those to train, validate and test on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortpipe.data.files import stamps
from ortpipe.data.rows import PARTS, Data, Rows
from ortpipe.errors import DataError, under

if TYPE_CHECKING:
    import numpy as np

    from ortpipe.data.config import DataConfig, SplitConfig
    from ortpipe.data.stream import Stream


def split(rows: Rows | Stream, config: SplitConfig) -> Data:
    """Divide rows by what they say themselves, then those to train on by fractions, seeded, test first.

    Rows in memory are drawn by scikit-learn's `train_test_split`; those of a stream piece by piece.

    Raises:
        DataError: a part would be empty, or a class has too few rows to stratify.
    """
    import dataclasses

    import numpy as np

    from ortpipe.data.notes import Digits

    if not isinstance(rows, Rows):
        return _split_stream(rows, config)
    parts: dict[str, Rows | None] = {"validation": None, "test": None}
    notes = rows.notes
    if notes is None:
        digits = Digits()
        digits.see_rows(rows)
        notes = tuple(digits.notes())
    if rows.part is not None:
        places = {name: np.flatnonzero(rows.part == code) for code, name in enumerate(PARTS)}
        rows = dataclasses.replace(rows, part=None)
        refuse_empty(config, {name: len(index) for name, index in places.items()})
        parts |= {name: rows.take(places[name]) for name in parts if len(places[name])}
        rows = rows.take(places["train"])
    elif config.column is not None or config.files:
        raise DataError(
            "A split by column or by file needs a source that has them.",
            got=f"data.split.column={config.column}, data.split files {config.files or 'none'}",
            fix="Split by fractions, or choose a source such as csv, parquet or npz.",
        )
    index = np.arange(len(rows))
    for name, fraction in zip(("test", "validation"), config.fractions, strict=True):
        if fraction:
            index, taken = _draw(name, index, rows, fraction, config)
            parts[name] = rows.take(taken)
    return Data(rows.take(index), parts["validation"], parts["test"], notes=notes)


def _draw(
    name: str, index: np.ndarray, rows: Rows, fraction: float, config: SplitConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions that are left, and those of a part."""
    import numpy as np

    count = round(fraction * len(rows))
    if not 0 < count < len(index):
        raise _empty(name, fraction, len(rows))
    if not config.stratify:  # what scikit-learn draws, without the second that its import takes
        drawn = index[np.random.RandomState(config.seed).permutation(len(index))]
        return drawn[count:], drawn[:count]
    from sklearn.model_selection import train_test_split

    try:
        left, taken = train_test_split(index, test_size=count, random_state=config.seed, stratify=rows.label[index])
    except ValueError as error:
        raise DataError(
            "A stratified split needs rows of every class in every part.",
            got=error,
            fix="Set data.split.stratify=false.",
        ) from error
    return left, taken


def _split_stream(rows: Stream, config: SplitConfig) -> Data:
    refuse_empty(config, {name: len(rows.part(code)) for code, name in enumerate(PARTS)})
    parts = {name: rows.part(code, config) for code, name in enumerate(PARTS)}
    for name, fraction in zip(("test", "validation"), config.fractions, strict=True):
        if fraction and not (len(parts[name]) and len(parts["train"])):
            raise _empty(name, fraction, len(rows))
    validation, test = (parts[name] if len(parts[name]) else None for name in ("validation", "test"))
    return Data(parts["train"], validation, test, notes=rows.notes)


def _empty(name: str, fraction: float, count: int) -> DataError:
    return DataError(
        "Every part of the split must have rows.",
        got=f"split.{name}={fraction} of {count} rows",
        fix="Choose larger fractions or give more rows.",
    )


def refuse_empty(config: SplitConfig, counts: dict[str, int]) -> None:
    """Refuse parts without rows where the data say which row is in which part."""
    for name, count in counts.items():
        if not count and (name == "train" or name in config.files):
            where = f"column {config.column!r}" if config.column is not None else config.files.get(name, "the source")
            raise DataError(
                "Every part of the split must have rows.",
                got=f"no {name} rows in {where}",
                fix=f"Mark rows as {name!r} in it." if config.column is not None else "Give a file with rows.",
            )


def load(config: DataConfig) -> Data:
    """Read a source and split its rows."""
    import dataclasses

    before = stamps(getattr(config.source, "path", None), config.split)
    with under("source"):
        rows = config.source(config.split)
    return dataclasses.replace(split(rows, config.split), files=before)
