"""The settings of a folder of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ortpipe.data.labelled_files import LabelledFolder
from ortpipe.errors import ConfigError
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
class PictureFolder(LabelledFolder):
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
