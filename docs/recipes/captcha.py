"""Captchas of a new style: captcha-whisperer's recurrent network, fine-tuned with CTC."""

from __future__ import annotations

import csv
import random
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from recipe import main

PACKAGE = "captcha-whisperer"
NEEDS = ("captcha_whisperer",)
METRIC = "sequence_accuracy"
CHECK = "texts read by CaptchaRecognizer"
CLASSES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # class 36 is the blank of CTC
LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
LENGTH, WIDTH, HEIGHT = 6, 160, 60
PARTS = {"train": 800, "validation": 100, "test": 200}


def rows(folder: Path, short: bool) -> None:
    """Write pictures of random texts and labels.csv, which has the class of each letter and the part."""
    from captcha_whisperer.recognizer import default_model_path

    shutil.copy(default_model_path(), folder / "before.onnx")
    shutil.rmtree(folder / "captchas", ignore_errors=True)
    (folder / "captchas").mkdir()
    chance = random.Random(0)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", *(f"c{place}" for place in range(1, LENGTH + 1)), "part"])
        for part, count in PARTS.items():
            for number in range(2 if short else count):
                text, name = "".join(chance.choices(LETTERS, k=LENGTH)), f"{part}_{number}.png"
                drawn(text, chance).save(folder / "captchas" / name)
                table.writerow([name, *map(CLASSES.index, text), part])


def dropin(model: Path, folder: Path) -> float:
    """Return the share of test texts that the package reads without a fault."""
    from captcha_whisperer import CaptchaRecognizer

    recognizer = CaptchaRecognizer(model)
    texts = _texts(folder, "test")
    read = [recognizer.recognize_bytes((folder / "captchas" / name).read_bytes())["text"] for name in texts]
    return float(np.mean([guess == text for guess, text in zip(read, texts.values(), strict=True)]))


def picture(folder: Path):
    """Return some test rows with the texts that the package reads before and after."""
    import matplotlib.pyplot as plt
    from captcha_whisperer import CaptchaRecognizer

    readers = [CaptchaRecognizer(folder / file) for file in ("before.onnx", "trained.onnx")]
    figure, axes = plt.subplots(2, 3, figsize=(7, 3.2))
    for axis, name in zip(axes.flat, _texts(folder, "test"), strict=False):
        before, after = (
            reader.recognize_bytes((folder / "captchas" / name).read_bytes())["text"] for reader in readers
        )
        axis.imshow(Image.open(folder / "captchas" / name))
        axis.set_title(f"{before} → {after}", fontsize=10)
        axis.axis("off")
    figure.tight_layout()
    return figure


def _texts(folder: Path, part: str) -> dict[str, str]:
    """Return the text of each file of a part."""
    with (folder / "labels.csv").open() as file:
        table = [row for row in csv.DictReader(file) if row["part"] == part]
    return {row["file"]: "".join(CLASSES[int(row[f"c{place}"])] for place in range(1, LENGTH + 1)) for row in table}


def drawn(text: str, chance: random.Random) -> Image.Image:
    """Return a captcha: tilted letters on waves, negative in every other band."""
    ink, left = Image.new("L", (WIDTH, HEIGHT)), chance.randrange(6)
    for letter in text:
        glyph = Image.new("L", (60, 60))
        ImageDraw.Draw(glyph).text((30, 30), letter, 255, ImageFont.load_default(chance.randrange(34, 46)), "mm")
        glyph = glyph.rotate(chance.uniform(-25, 25), Image.Resampling.BICUBIC)
        ink.paste(255, (left - 15, chance.randrange(-6, 7)), glyph)
        left += chance.randrange(24, 27)
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    phase, width, slope = chance.uniform(0, 6), chance.randrange(12, 20), chance.uniform(-0.5, 0.5)
    waves = np.clip(y + np.round(3 * np.sin(x / 9 + phase)).astype(int), 0, HEIGHT - 1)
    bands = (x + slope * y + 9 * phase) // width % 2 == 1
    letters = (np.asarray(ink)[waves, x] > 127) ^ bands
    dark, light = ([chance.randrange(*bounds) for _ in range(3)] for bounds in ((0, 90), (150, 256)))
    return Image.fromarray(np.where(letters[..., None], dark, light).astype(np.uint8)).filter(ImageFilter.SMOOTH)


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
