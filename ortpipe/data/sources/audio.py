"""Folders of sound files."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ortpipe.data.labelled_files import READERS, LabelledFolder
from ortpipe.data.packages import require
from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.errors import ConfigError, DataError
from ortpipe.settings import Config, Count, Positive, Seed

FILE = "file"  # split.group: all windows of a file are in one part
Range = tuple[float, float]


@dataclass(frozen=True)
class AugmentSound(Config):
    """Further training rows, made from the files of the training rows.

    Attributes:
        copies: how many copies of each file are added.
        noise: the least and the largest signal-to-noise ratio, in dB over the whole file; null: no noise.
        sounds: a file or folder of sounds to take the noise from; null: white noise.
        gain: the least and the largest change of the level, in dB; null: no change.
        seed: draws the noise, its level and the gain of each copy.
    """

    copies: Count = 1
    noise: Range | None = None
    sounds: str | None = None
    gain: Range | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        for name in ("noise", "gain"):
            limits = getattr(self, name)
            if limits is not None and limits[0] > limits[1]:
                rule, fix = "{key} must be [least, largest], in dB.", f"Write [{limits[1]:g}, {limits[0]:g}]."
                raise ConfigError(rule, key=name, got=list(limits), fix=fix)
        if self.noise is None and (self.gain is None or self.sounds is not None):
            rule = "Copies, drawn with {at}seed, differ by {at}noise or {at}gain."
            fix = "Set {key}=[0, 20], or remove {at}sounds and set gain."
            raise ConfigError(rule, key="noise", got="null", fix=fix)


@dataclass(frozen=True, kw_only=True)
class Audio(LabelledFolder):
    """A folder of sound files; a row is a window of one channel, [samples], float32 from −scale to scale.

    Files are resampled to one rate, and their channels are averaged. Rows are in the order of time within a file.

    Attributes:
        rate: samples per second of the rows; null: of the files, which must then have the same one.
        samples: the length of a window.
        hop: samples from the start of a window to the start of the next one; null: `samples`, without overlap.
        pad: where silence is added to a file that is shorter than a window: at its start or end; null: it is rejected.
        scale: what samples from −1 to 1 are multiplied by; 32768 for models that take 16-bit numbers.
        outside: the label of windows whose middle is in no segment; null: such windows are left out.
        augment: further training rows; null: none.
    """

    endings: ClassVar[tuple[str, ...]] = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif")

    rate: Count | None = 16000
    samples: Count = 16000
    hop: Count | None = None
    pad: Literal["start", "end"] | None = None
    scale: Positive = 1.0
    outside: str | int | None = None
    augment: AugmentSound | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside is not None and not isinstance(self.label, str) and len(self.label) > 1:
            rule, fix = "Windows outside of segments have one label.", "Remove {key}, or name one column in {at}label."
            raise ConfigError(rule, key="outside", got=f"{self.outside!r} for {', '.join(self.label)}", fix=fix)

    @property
    def prepared(self) -> dict[str, Any]:
        """The settings by which a window is made from a sound, for the model's metadata."""
        pad = {} if self.pad is None else {"pad": self.pad}
        lengths = {"samples": self.samples, "hop": self.hop or self.samples, "scale": self.scale}
        return {"source": "audio", "rate": self.rate, "channels": 1, **lengths, **pad}

    @functools.cached_property
    def timed(self) -> bool:
        """Whether the table of labels lists segments of files, by the columns `start` and `end` in seconds."""
        return self.labels is not None and all({"start", "end"} <= {*row} for _, row in self._listed()[:1])

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*super()._columns, *(("start", "end") if self.timed else ()))

    def _key(self, row: Mapping[str, str]) -> tuple[str, ...]:
        return (row["file"], row["start"]) if self.timed else (row["file"],)

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read the files: from disk again for every epoch if the rows are streamed."""
        require("soundfile", "sound files", "audio")
        files = self.files(split)
        if self.augment is not None and any(file.part is None for file in files):
            rule = "Only training files have copies, so files must have parts."
            fix = "Set {@data.split.column}=folder or to a column of {at}labels, or {@data.split.test} to a folder."
            raise ConfigError(rule, key="augment", got="a split by fractions or groups of rows", fix=fix)
        reader = READERS["audio"](self, files, named=split is not None and split.group == FILE)
        rows = self.rows_of(reader)
        if split is not None and any(split.fractions) and (reader.counts.sum(axis=1) > 1).any():
            rule = "Windows of one file must be in one part: they resemble each other."
            fix = "Set {@data.split.group}=file, which splits files, or {@data.split.column}=folder."
            raise DataError(rule, got="a random split of windows", fix=fix)
        return rows
