"""Folders of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ortpipe.data.labelled_files import READERS, LabelledFolder
from ortpipe.data.packages import require
from ortpipe.data.parts import SplitConfig
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows
from ortpipe.data.stream import LIMIT
from ortpipe.errors import ConfigError, DataError
from ortpipe.settings import Config, Count, Positive, Seed, Times

Size = Count | tuple[Count, Count]


@dataclass(frozen=True)
class Augment(Config):
    """Further training rows, made from the pictures of the training rows.

    Attributes:
        copies: how many copies of each picture are added.
        flip: mirror about half of the copies, left to right.
        shift: the most pixels that a copy is moved by, in each direction.
        seed: draws which copies are mirrored, and how far they are moved.
    """

    copies: Count = 1
    flip: bool = False
    shift: Times = 0
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not self.flip and not self.shift:
            rule = "Copies, drawn with {at}seed, differ by {at}flip or {at}shift."
            fix = "Set {key}=true, or {at}shift=4."
            raise ConfigError(rule, key="flip", got="false, and shift 0", fix=fix)


@dataclass(frozen=True, kw_only=True)
class Images(LabelledFolder):
    """A folder of pictures: [N, channels, height, width], (pixel / scale − mean) / std.

    A picture is turned upright by its EXIF data, resized, and cut to its middle.

    Attributes:
        resize: [height, width], or the length of the shorter side; null: as they are.
        crop: [height, width] of the middle to cut out, or the side of a square; null: all.
        filter: how pixels are interpolated.
        color: the order of the channels, or one channel.
        layout: where the channels are.
        scale: what pixels, 0 to 255, are divided by.
        mean: subtracted after `scale`, of each channel or one number for all; null: 0.
        std: the divisor after that, of each channel or one number for all; null: 1.
        dtype: of the input; uint8 pixels are not normalized.
        augment: further training rows; null: none.
    """

    endings: ClassVar[tuple[str, ...]] = (
        *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm"),
        *(".ppm", ".tif", ".tiff", ".webp"),
    )

    resize: Size | None = None
    crop: Size | None = None
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    color: Literal["rgb", "bgr", "grey"] = "rgb"
    layout: Literal["channels_first", "channels_last"] = "channels_first"
    scale: Positive = 255.0
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None
    dtype: Literal["float32", "uint8"] = "float32"
    augment: Augment | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        channels = 1 if self.color == "grey" else 3
        for name in ("mean", "std"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) not in (1, channels):
                rule = f"{{key}} must have one number{', or one for each of 3 channels' if channels > 1 else ''}."
                raise ConfigError(rule, key=name, got=list(numbers), fix="Give one number for each channel.")
            if numbers is not None and self.dtype == "uint8":
                rule, fix = "uint8 pixels are not normalized.", "Remove {key}, or set {at}dtype=float32."
                raise ConfigError(rule, key=name, got=list(numbers), fix=fix)

    @property
    def prepared(self) -> dict[str, Any]:
        """What is done to a picture before the model, for the model's metadata."""
        names = ["resize", "crop", "filter", "color", "layout", "dtype"]
        names += ["scale", "mean", "std"] if self.dtype != "uint8" else []
        settings = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {"source": "images", **{n: list(v) if isinstance(v, tuple) else v for n, v in settings.items()}}

    def __call__(self, split: SplitConfig | None = None) -> RowSet:
        """Read the pictures: from disk again for every epoch if the rows are streamed."""
        require("PIL", "pictures", "image", package="Pillow")
        return self.rows_of(READERS["images"](self, self.files(split)))

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
        return _with_copies(train, self.augment, 2 if self.layout == "channels_first" else 1)


def _with_copies(rows: Rows, settings: Augment, high: int) -> Rows:
    """Return the rows and `copies` further ones of each, mirrored and moved at random; a seed draws them.

    A picture that is moved repeats the pixels of its edges, as a random crop after padding does. `high` is the axis of
    the height, which that of the width follows.
    """
    x = rows.inputs["X"]
    copies = [x]
    for number in range(settings.copies):
        random = np.random.default_rng([settings.seed, number])
        moves = random.integers(-settings.shift, settings.shift + 1, (2, len(x)))
        mirrored = random.integers(0, 2, len(x)).astype(bool) & settings.flip
        down, right = (
            np.clip(np.arange(x.shape[axis]) + move[:, None], 0, x.shape[axis] - 1)
            for axis, move in zip((high, high + 1), moves, strict=True)
        )
        right = np.where(mirrored[:, None], right[:, ::-1], right)
        copies.append(_gathered(_gathered(x, down, high), right, high + 1))
    place = np.tile(np.arange(len(x)), len(copies))
    return rows.take(place).replace(inputs={"X": np.concatenate(copies)})


def _gathered(array: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * array.ndim
    shape[0], shape[axis] = places.shape
    return np.take_along_axis(array, places.reshape(shape), axis)
