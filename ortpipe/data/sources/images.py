"""Folders of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.data.config import SplitConfig
from ortpipe.data.packages import require
from ortpipe.data.pictures import PictureFolder
from ortpipe.data.rows import Rows, RowSet
from ortpipe.data.stream import LIMIT
from ortpipe.doors import later
from ortpipe.errors import DataError

if TYPE_CHECKING:  # they import Pillow
    from ortpipe.data.picture_reader import PictureReader, augmented
else:
    later(__name__)


@dataclass(frozen=True, kw_only=True)
class Images(PictureFolder):
    """A folder of pictures; see `PictureFolder` for its settings."""

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read the pictures: from disk again for every epoch if the rows are streamed."""
        require("PIL", "pictures", "image", package="Pillow")
        return self.rows_of(PictureReader(self, self.files(split)))

    def augmented(self, train: RowSet) -> RowSet:
        """Return the training rows and their copies."""
        if self.augment is None:
            return train
        size = len(train) * train.row_bytes * (1 + self.augment.copies)
        if not isinstance(train, Rows) or size > LIMIT:
            rule = f"Rows and their copies are in memory, at most {LIMIT >> 20} MiB."
            got = f"{size >> 20:,} MiB" + ("" if isinstance(train, Rows) else ", of rows that are streamed")
            fix = "Lower {key} or {at}resize, or write copies to the folder of training rows."
            raise DataError(rule, key="augment.copies", got=got, fix=fix)
        return augmented(train, self)
