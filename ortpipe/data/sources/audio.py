"""Folders of sound files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.data.config import SplitConfig
from ortpipe.data.packages import require
from ortpipe.data.rows import RowSet
from ortpipe.data.sounds import SoundFolder
from ortpipe.doors import later
from ortpipe.errors import ConfigError, DataError

if TYPE_CHECKING:  # it imports soundfile
    from ortpipe.data.sound_reader import SoundReader
else:
    later(__name__)

FILE = "file"  # split.group: all windows of a file are in one part


@dataclass(frozen=True, kw_only=True)
class Audio(SoundFolder):
    """A folder of sound files; see `SoundFolder` for its settings."""

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read the files: from disk again for every epoch if the rows are streamed."""
        require("soundfile", "sound files", "audio")
        files = self.files(split)
        if self.augment is not None and any(file.part is None for file in files):
            rule = "Only training files have copies, so files must have parts."
            fix = "Set {@data.split.column}=folder or to a column of {at}labels, or {@data.split.test} to a folder."
            raise ConfigError(rule, key="augment", got="a split by fractions or groups of rows", fix=fix)
        reader = SoundReader(self, files, named=split is not None and split.group == FILE)
        rows = self.rows_of(reader)
        if split is not None and any(split.fractions) and (reader.counts.sum(axis=1) > 1).any():
            rule = "Windows of one file must be in one part: they resemble each other."
            fix = "Set {@data.split.group}=file, which splits files, or {@data.split.column}=folder."
            raise DataError(rule, got="a random split of windows", fix=fix)
        return rows
