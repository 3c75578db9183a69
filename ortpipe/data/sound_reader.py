"""Windows of sound files: decoded by soundfile within bounds, resampled, and cut one file at a time."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from scipy.signal import resample_poly

from ortpipe.bounded import MOST_BYTES, read
from ortpipe.data.file_reader import FileReader, label_array
from ortpipe.data.labelled_files import LabelledFile, visible
from ortpipe.data.reader import Labelled
from ortpipe.data.rows import PIECE, Rows
from ortpipe.data.sources.audio import Audio
from ortpipe.errors import DataError


@dataclass(frozen=True)
class Take:
    """A file, or one of its copies, with its segments in the order of time."""

    path: Path
    part: int | None
    segments: Sequence[tuple[float, float, int]]  # start and end in seconds, and the place of the label
    copy: int  # 0: the file as it is


class SoundReader(FileReader):
    """Reads the windows of sound files; a group is a file.

    Args:
        source: the settings of the windows.
        files: the files or, with times, their segments; those of a file follow each other.
        named: whether the rows have the name of their file as the input `file`, for a split by group.
    """

    def __init__(self, source: Audio, files: Sequence[LabelledFile], *, named: bool = False) -> None:
        super().__init__(source.stream, [source.samples])
        self._source, self._named, self._rate = source, named, source.rate
        self._places = dict[int, np.ndarray]()  # of the labels of each file's windows
        outside = [] if source.outside is None else [LabelledFile(Path(), (str(source.outside),), None)]
        width = len(files[0].labels) - 2 * source.timed
        texts = [LabelledFile(file.path, file.labels[:width], None) for file in files]
        self._labels = label_array([*texts, *outside], table=source.labels is not None)
        self._takes, self._noises = _takes(source, files), _noises(source)
        rule = "All sound files must be readable, of one rate, and as long as a window."
        fix = "Repair or remove them; set {at}rate, lower {at}samples, or set {at}pad."
        self._learn("sounds", len(self._takes), rule, fix)
        if not self.counts.sum():
            rule = "A window must have a label: its middle must be in a segment."
            fix = "Correct the times, or set {at}outside."
            raise DataError(rule, key="labels", got=f"none in {source.labels}", fix=fix)
        used = np.unique(np.concatenate(list(self._places.values())))
        lost = len(files) - np.count_nonzero(used < len(files))
        note = f"{lost:,} of {len(files):,} segments are ignored: no window has its middle in them"
        self.notes = (note,) if lost else ()

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield the labels and parts of a file's windows, in one piece."""
        labels = self._labels[self._places[group]]
        yield {"": labels}, self._part(group, len(labels))

    def _part(self, group: int, count: int) -> np.ndarray | None:
        part = self._takes[group].part
        return None if part is None else np.full(count, part, np.int8)

    def _pieces(self, group: int, faults: list[str]) -> Iterator[Rows]:
        source, take = self._source, self._takes[group]
        try:
            sound, rate = self._sound(take)
        except ValueError as error:
            faults.append(f"{take.path}: {error}")
            return
        hop, size = source.hop or source.samples, max(1, PIECE // self.row_bytes)
        windows = np.lib.stride_tricks.sliding_window_view(sound, source.samples)[::hop]
        middles = (np.arange(len(windows)) * hop + source.samples / 2) / rate
        places = _places(take.segments, middles, -1 if source.outside is None else len(self._labels) - 1)
        used, self._places[group] = np.flatnonzero(places >= 0), places[places >= 0]
        for first in range(0, len(used), size):
            chosen = used[first : first + size]
            yield self._windows(windows[chosen], self._labels[places[chosen]], group)

    def _sound(self, take: Take) -> tuple[np.ndarray, int]:
        """Return a file's sound and its rate.

        Raises:
            ValueError: it is broken, empty or too short, or has another rate than the files before.
        """
        sound, rate = decoded(take.path, self._source.rate)
        self._rate = self._rate or rate
        if rate != self._rate:
            raise ValueError(f"{rate:,} samples per second, others {self._rate:,}")
        sound = _long_enough(sound, self._source) * np.float32(self._source.scale)
        return self._augmented(sound, take) if take.copy else sound, rate

    def _windows(self, windows: np.ndarray, labels: np.ndarray, group: int) -> Rows:
        names = np.full(len(windows), str(self._takes[group].path))
        inputs = {"X": np.ascontiguousarray(windows), **({"file": names} if self._named else {})}
        prepared = {**self._source.prepared, "rate": self._rate}
        part = self._part(group, len(windows))
        return Rows(inputs, labels, prepared=prepared, origin=json.dumps(prepared), part=part)

    def _augmented(self, sound: np.ndarray, take: Take) -> np.ndarray:
        """Return a sound with noise and another level, which follow from the seed, the file's name and the copy."""
        settings: Any = self._source.augment
        name = int.from_bytes(hashlib.sha256("/".join(take.path.parts[-2:]).encode()).digest()[:8], "big")
        random = np.random.default_rng([settings.seed, take.copy, name])
        if settings.noise is not None:
            noise = self._noise(random, len(sound))
            decibels = random.uniform(*settings.noise)
            power = np.mean(np.square(sound, dtype=np.float64)) / max(
                np.mean(np.square(noise, dtype=np.float64)), 1e-20
            )
            sound = sound + noise * np.float32(math.sqrt(power) * 10 ** (-decibels / 20))
        gain = random.uniform(*settings.gain) if settings.gain is not None else 0
        return (sound * np.float32(10 ** (gain / 20))).astype(np.float32)

    def _noise(self, random: np.random.Generator, length: int) -> np.ndarray:
        """Return noise of a length: white, or a random part of a random file, repeated if it is too short."""
        if not self._noises:
            return random.standard_normal(length, np.float32)
        file = self._noises[random.integers(len(self._noises))]
        try:
            noise, _ = decoded(file, self._rate)
        except ValueError as error:
            raise ValueError(f"its noise {file}: {error}") from error
        return np.resize(np.roll(noise, -int(random.integers(len(noise)))), length)


def decoded(file: Path, rate: int | None) -> tuple[np.ndarray, int]:
    """Return a file's sound, the mean of its channels, float32 [samples] at a rate (None: its own), and the rate.

    Raises:
        ValueError: it is broken, too large, or has values that are not finite.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(read(file))) as opened:
            if opened.frames * opened.channels * 4 > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES:,} bytes of samples")
            sound = opened.read(dtype="float32", always_2d=True).mean(axis=1, dtype=np.float32)
            native = opened.samplerate
    except (OSError, soundfile.SoundFileError) as error:
        raise ValueError(str(error).rpartition(">: ")[2] or type(error).__name__) from error
    if not len(sound):
        raise ValueError("it has no samples")
    if not np.isfinite(sound).all():
        raise ValueError("it has samples that are not finite")
    if rate is None or rate == native:
        return sound, native
    common = math.gcd(rate, native)
    return resample_poly(sound, rate // common, native // common).astype(np.float32), rate


def _long_enough(sound: np.ndarray, source: Audio) -> np.ndarray:
    """Return a sound, with silence added if it is shorter than a window."""
    missing = max(0, source.samples - len(sound))
    if missing and source.pad is None:
        raise ValueError(f"{len(sound):,} samples, shorter than a window of {source.samples:,}")
    return np.pad(sound, (missing, 0) if source.pad == "start" else (0, missing))


def _takes(source: Audio, files: Sequence[LabelledFile]) -> list[Take]:
    """Return the files, then the copies of those of the training part."""
    takes, first = list[Take](), 0
    for path, group in itertools.groupby(files, key=lambda file: file.path):
        of_file = list(group)
        part = of_file[0].part
        if any(file.part != part for file in of_file):
            rule, fix = "All segments of a file must be in one part.", "Correct their parts."
            raise DataError(rule, key="labels", got=f"several parts for {path}", fix=fix)
        segments = sorted((*_times(source, file), first + place) for place, file in enumerate(of_file))
        first += len(segments)
        for before, after in itertools.pairwise(segments):
            if after[0] < before[1]:
                got = f"{after[0]:g} s, before the end of another one at {before[1]:g} s, in {path}"
                raise DataError(
                    "Segments of a file must not overlap.", key="labels", got=got, fix="Correct their times."
                )
        takes.append(Take(path, part, segments, 0))
    copies = range(1, 1 + source.augment.copies) if source.augment is not None else ()
    return [*takes, *(Take(t.path, 0, t.segments, copy) for copy in copies for t in takes if t.part == 0)]


def _times(source: Audio, file: LabelledFile) -> tuple[float, float]:
    """Return the start and the end of a segment in seconds; without times, or to predict, those of the whole file."""
    if not source.timed or not any(file.labels):
        return 0.0, math.inf
    try:
        start, end = map(float, file.labels[-2:])
    except ValueError:
        start, end = 0.0, -1.0
    if not 0 <= start < end:
        got = f"{file.labels[-2]!r} to {file.labels[-1]!r} in {file.path}"
        raise DataError(
            "A segment must have a start before its end, in seconds.", key="labels", got=got, fix="Correct it."
        )
    return start, end


def _places(segments: Sequence[tuple[float, float, int]], times: np.ndarray, outside: int) -> np.ndarray:
    """Return the place of the label at each time, int64 [N]: that of the segment, or `outside` without one."""
    starts, ends, labels = (np.array(column) for column in zip(*segments, strict=True))
    segment = np.searchsorted(starts, times, side="right") - 1
    inside = (segment >= 0) & (times < ends[segment])
    return np.where(inside, labels[segment], outside)


def _noises(source: Audio) -> list[Path]:
    """Return the files of the noise of copies."""
    place = source.augment.sounds if source.augment is not None else None
    if place is None:
        return []
    path = Path(place)
    files = [path] if path.is_file() else visible(path, source.endings)
    if not files:
        rule = f"{{key}} must hold files that end in {', '.join(source.endings)}."
        raise DataError(rule, key="augment.sounds", got=f"none in {place}", fix="Check the path.")
    return files
