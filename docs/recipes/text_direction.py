"""Labels photographed upside down: rapidocr's classifier of text direction, fine-tuned on serial numbers."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from recipe import main

PACKAGE = "rapidocr-onnxruntime"
NEEDS = ("rapidocr_onnxruntime",)
METRIC = "accuracy"
CHECK = "directions found by RapidOCR"
LETTERS = "0123456789ACEFHKLMNPSUWXZ"
WIDTH, HEIGHT = 192, 48
PARTS = {"train": 400, "validation": 100, "test": 300}


def rows(folder: Path, short: bool) -> None:
    """Write pictures of serial numbers into a folder for each part, with the classes 0 (upright) and 1 (turned)."""
    import rapidocr_onnxruntime

    models = Path(rapidocr_onnxruntime.__file__).parent / "models"
    shutil.copy(models / "ch_ppocr_mobile_v2.0_cls_infer.onnx", folder / "before.onnx")
    shutil.rmtree(folder / "lines", ignore_errors=True)
    chance = random.Random(0)
    for part, count in PARTS.items():
        for number in range(4 if short else count):
            place = folder / "lines" / part / str(number % 2)
            place.mkdir(parents=True, exist_ok=True)
            line = _drawn("".join(chance.choices(LETTERS, k=chance.randrange(5, 9))), chance)
            (line.rotate(180) if number % 2 else line).save(place / f"{number}.png")


def dropin(model: Path, folder: Path) -> float:
    """Return the share of test lines whose direction the package finds."""
    guesses, truth = _read(model, folder)
    return float(np.mean(np.array(guesses) == np.array(truth)))


def picture(folder: Path):
    """Return some test lines that the package turns wrongly with its own file."""
    import matplotlib.pyplot as plt

    (before, truth), (after, _) = (_read(folder / name, folder) for name in ("before.onnx", "trained.onnx"))
    files = _files(folder)
    wrong = [place for place, guess in enumerate(before) if guess != truth[place]][:6]
    figure, axes = plt.subplots(2, 3, figsize=(7, 2.2))
    for axis, place in zip(axes.flat, wrong, strict=False):
        axis.imshow(Image.open(files[place]))
        axis.set_title(f"{before[place]}° → {after[place]}°", fontsize=10)
    for axis in axes.flat:
        axis.axis("off")
    figure.tight_layout()
    return figure


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "lines" / "test").glob("*/*.png"))


def _read(model: Path, folder: Path) -> tuple[list[int], list[int]]:
    """Return the angle of each test line by the package, and the true one."""
    from rapidocr_onnxruntime import RapidOCR

    reader, files = RapidOCR(cls_model_path=str(model)), _files(folder)
    results = [reader(file, use_det=False, use_cls=True, use_rec=False)[0][0] for file in files]
    return [int(angle) for angle, _ in results], [180 * int(file.parent.name) for file in files]


def _drawn(text: str, chance: random.Random) -> Image.Image:
    """Return a printed serial number: thin letters of any width, tilted a little, with blots."""
    size = chance.randrange(22, 40)
    glyphs = Image.new("L", (600, 80))
    ImageDraw.Draw(glyphs).text((40, 40), " ".join(text), 255, ImageFont.load_default(size), "lm")
    glyphs = glyphs.crop(glyphs.getbbox()).resize((chance.randrange(130, 180), chance.randrange(20, 34)))
    ink = Image.new("L", (WIDTH, HEIGHT))
    ink.paste(glyphs, ((WIDTH - glyphs.width) // 2, (HEIGHT - glyphs.height) // 2))
    ink = ink.rotate(chance.uniform(-4, 4), Image.Resampling.BICUBIC)
    noise = np.random.default_rng(chance.randrange(2**32)).normal(0, 30, (HEIGHT, WIDTH))
    light = chance.randrange(120, 250)
    dark = chance.randrange(20, light - 60)
    shade = light + (dark - light) * (np.asarray(ink) / 255) + noise
    return Image.fromarray(shade.clip(0, 255).astype(np.uint8)).filter(ImageFilter.SMOOTH).convert("RGB")


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
