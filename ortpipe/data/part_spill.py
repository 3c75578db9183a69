"""What is read of a stream beside the rows of an epoch: one pass lays it aside."""

from __future__ import annotations

import logging

import numpy as np

from ortpipe.data.config import PARTS
from ortpipe.data.draw import TRAIN, Draw
from ortpipe.data.prefetch import prefetch
from ortpipe.data.reader import Reader, groups_with, rows_with_parts
from ortpipe.data.spill import Spill, SpillFile, fits, folder

LOG = logging.getLogger(__name__)


class PartSpill:
    """The rows of a split to validate and test on, and a sample of those to train on, in a file without a name.

    They lie scattered over all groups, so that each would cost a pass over every row whenever it is read. One pass
    lays all of them aside, once somebody asks for one; from then on they are read there.

    Args:
        reader: of all rows.
        draw: of those that the data leave to train on.
        window: how many rows a sample has at most; None: all.
    """

    def __init__(self, reader: Reader, draw: Draw, window: int | None) -> None:
        self._reader, self._draw = reader, draw
        counts = reader.counts
        rows = [draw.counts[part] + int(counts[:, part].sum()) * (part != TRAIN) for part in range(len(PARTS))]
        self._every = 1 if window is None else max(1, -(-rows[TRAIN] // window))
        sizes = [-(-rows[TRAIN] // self._every), *rows[1:]]
        # a part that has groups of its own, such as files, is read from them
        scattered = [counts[groups_with(counts, draw, part)].sum() > 2 * size > 0 for part, size in enumerate(sizes)]
        scattered[TRAIN] = self._every > 1
        self._parts = [part for part, is_scattered in enumerate(scattered) if is_scattered]
        self._bytes = sum(sizes[part] for part in self._parts) * reader.row_bytes
        self._spills: dict[int, Spill] | None = None if self._parts and fits(self._bytes) else {}

    def is_of(self, draw: Draw) -> bool:
        """Return whether the split is that of this draw."""
        return self._draw is draw

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said of the file, before it is written."""
        if not self._parts:
            return ()
        what = f"rows to validate and test on, and some to fit on, {max(1, round(self._bytes / 1e6)):,} MB,"
        if self._spills == {}:
            return (f"{what} are read from the data each time: {folder()} has no room for them (TMPDIR)",)
        return (f"{what} are laid aside in {folder()} (TMPDIR), in a file without a name that ends with the process",)

    def part(self, part: int) -> Spill | None:
        """Return the rows of a part (to train on, a sample); None where they are read from the data."""
        if self._spills is None:
            self._spills = self._write_parts() if part in self._parts else None
        return (self._spills or {}).get(part)

    def _write_parts(self) -> dict[int, Spill]:
        reader, draw, trained = self._reader, self._draw, 0
        wanted = np.any([groups_with(reader.counts, draw, part) for part in self._parts], axis=0)
        spills: dict[int, Spill] = {}
        try:
            file = SpillFile()
            spills |= {part: Spill(file) for part in self._parts}
        except OSError as error:
            return _log_failure(error)
        for piece, codes in prefetch(rows_with_parts(reader, draw, np.flatnonzero(wanted).tolist())):
            for part, spill in spills.items():
                places = np.flatnonzero(codes == part)
                if part == TRAIN:
                    count, places = len(places), places[-trained % self._every :: self._every]
                    trained += count
                if len(places):
                    try:
                        spill.write(piece.take(places).replace(part=None))
                    except OSError as error:
                        return _log_failure(error)
        for spill in spills.values():
            spill.flush()
        return spills


def _log_failure(error: OSError) -> dict[int, Spill]:
    LOG.warning("no rows are laid aside in %s: %s; each use reads them from the data", folder(), error)
    return {}
