"""Pictures as arrays: decoded by Pillow within bounds, resized, cropped and normalized."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ortpipe.bounded import read
from ortpipe.data.file_reader import FileReader, label_array
from ortpipe.data.labelled_files import LabelledFile
from ortpipe.data.reader import Labelled
from ortpipe.data.rows import PIECE, Rows
from ortpipe.data.sources.images import Images

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # Pillow's others may start programs
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # of at most 8 bits per channel
MOST_PIXELS = 2**26  # of a decoded picture


class PictureReader(FileReader):
    """Reads pictures as rows, in groups of PIECE bytes."""

    def __init__(self, source: Images, files: Sequence[LabelledFile]) -> None:
        self._source, self._files = source, files
        self._labels = label_array(files, table=source.labels is not None)
        self._first, self._shape = _first_picture(source, files)
        super().__init__(source.stream, self._shape)
        self._size = max(1, PIECE // self.row_bytes)  # of a group
        rule = "All pictures must be readable and, after {at}resize and {at}crop, of one size."
        fix = "Repair or remove them; set {at}resize and {at}crop for pictures of several sizes."
        self._learn("pictures", -(-len(files) // self._size), rule, fix)

    def read_labels(self, group: int) -> Iterator[Labelled]:
        """Yield a group's labels and parts, in one piece."""
        cut = slice(group * self._size, (group + 1) * self._size)
        parts = [file.part for file in self._files[cut]]
        yield {"": self._labels[cut]}, None if None in parts else np.array(parts, np.int8)

    def _pieces(self, group: int, faults: list[str]) -> Iterator[Rows]:
        arrays, files = list[np.ndarray](), self._files[group * self._size :][: self._size]
        for file in files:
            try:
                array = pixels(file.path, self._source)
                if array.shape != self._shape:
                    size, first = (_size(shape, self._source) for shape in (array.shape, self._shape))
                    raise ValueError(f"{size}, but {self._first} has {first}")
                arrays.append(array)
            except ValueError as error:
                faults.append(f"{file.path}: {error}")
        if len(arrays) == len(files):
            inputs, prepared = {"X": normalized(np.stack(arrays), self._source)}, self._source.prepared
            [(labels, part)] = self.read_labels(group)
            yield Rows(inputs, labels[""], prepared=prepared, origin=json.dumps(prepared), part=part)


def _first_picture(source: Images, files: Sequence[LabelledFile]) -> tuple[Path, tuple[int, ...]]:
    """Return the path and the shape of the first picture that can be read; () as the shape if there is none."""
    for file in files:
        try:
            return file.path, pixels(file.path, source).shape
        except ValueError:
            continue
    return Path(), ()


def _size(shape: tuple[int, ...], source: Images) -> str:
    height, width = shape[1:] if source.layout == "channels_first" else shape[:2]
    return f"{width} × {height} pixels"


def pixels(file: Path, source: Images) -> np.ndarray:
    """Return a picture's pixels, uint8 [channels, height, width] or [height, width, channels]; its first frame only.

    Raises:
        ValueError: it is broken, too large, has more than 8 bits per channel, or is smaller than the crop.
    """
    try:
        with Image.open(io.BytesIO(read(file)), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"it has more than {MOST_PIXELS:,} pixels")
            if image.mode not in MODES:
                raise ValueError(f"it has more than 8 bits per channel (mode {image.mode})")
            image.load()
            upright = ImageOps.exif_transpose(image).convert("L" if source.color == "grey" else "RGB")
            array = np.asarray(_cut(_resized(upright, source), source))
    except UnidentifiedImageError as error:
        raise ValueError(f"no picture in one of the formats {', '.join(FORMATS)}") from error
    except Exception as error:  # decoders raise anything for wrong content
        raise ValueError(str(error) or type(error).__name__) from error
    array = array[..., None] if array.ndim == 2 else array
    array = array[..., ::-1] if source.color == "bgr" else array
    return array.transpose(2, 0, 1) if source.layout == "channels_first" else array


def _resized(image: Image.Image, source: Images) -> Image.Image:
    """Resize to [height, width], or the shorter side to a length."""
    size = source.resize
    if size is None:
        return image
    if isinstance(size, int):
        shorter = min(image.size)
        width, height = (int(size * length / shorter) for length in image.size)
    else:
        height, width = size
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width:,} × {height:,} pixels after resize, more than {MOST_PIXELS:,}")
    return image.resize((width, height), Image.Resampling[source.filter.upper()])


def _cut(image: Image.Image, source: Images) -> Image.Image:
    """Cut out the middle."""
    if source.crop is None:
        return image
    height, width = (source.crop, source.crop) if isinstance(source.crop, int) else source.crop
    if width > image.width or height > image.height:
        raise ValueError(f"{image.width} × {image.height} pixels, smaller than the crop of {width} × {height}")
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def normalized(array: np.ndarray, source: Images) -> np.ndarray:
    """Return (pixels / scale − mean) / std, float32, by channel; uint8 stays as it is."""
    if source.dtype == "uint8":
        return array
    shape = (-1, 1, 1) if source.layout == "channels_first" else (-1,)
    values = array.astype(np.float32) / np.float32(source.scale)
    if source.mean is not None:
        values -= np.array(source.mean, np.float32).reshape(shape)
    if source.std is not None:
        values /= np.array(source.std, np.float32).reshape(shape)
    return values
