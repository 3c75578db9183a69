"""Captchas of a new style: ddddocr's int8 network, fine-tuned with CTC and rounded back to int8."""

from __future__ import annotations

import csv
import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
from captcha import LENGTH, LETTERS, drawn
from PIL import Image
from recipe import main

PACKAGE = "ddddocr"
NEEDS = ("ddddocr",)
METRIC = "sequence_accuracy"
CHECK = "texts read by DdddOcr"
PARTS = {"train": 200, "validation": 30, "test": 100}


def rows(folder: Path, short: bool) -> None:
    """Write pictures of random texts, labels.csv with the class of each letter, and the package's characters."""
    import ddddocr

    shutil.copy(Path(ddddocr.__file__).with_name("common_old.onnx"), folder / "before.onnx")
    characters = ddddocr.DdddOcr(old=True, show_ad=False).get_charset()
    settings = {"charset": characters, "word": False, "image": [-1, 64], "channel": 1}
    (folder / "characters.json").write_text(json.dumps(settings))
    shutil.rmtree(folder / "captchas", ignore_errors=True)
    (folder / "captchas").mkdir()
    chance = random.Random(0)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "text", *(f"c{place}" for place in range(1, LENGTH + 1)), "part"])
        for part, count in PARTS.items():
            for number in range(2 if short else count):
                text, name = "".join(chance.choices(LETTERS, k=LENGTH)), f"{part}_{number}.png"
                drawn(text, chance).save(folder / "captchas" / name)
                table.writerow([name, text, *map(characters.index, text), part])


def dropin(model: Path, folder: Path) -> float:
    """Return the share of test texts that the package reads without a fault."""
    return float(np.mean([guess == text for guess, text in zip(_read(model, folder), _texts(folder), strict=True)]))


def picture(folder: Path):
    """Return some test rows with the texts that the package reads before and after."""
    import matplotlib.pyplot as plt

    before, after = (_read(folder / file, folder) for file in ("before.onnx", "trained.onnx"))
    figure, axes = plt.subplots(2, 3, figsize=(7, 3.2))
    for axis, file, *texts in zip(axes.flat, _texts(folder).values(), before, after, strict=False):
        axis.imshow(Image.open(file))
        axis.set_title(" → ".join(texts), fontsize=10)
        axis.axis("off")
    figure.tight_layout()
    return figure


def _read(model: Path, folder: Path) -> list[str]:
    """Return the text of each test picture by the package, which runs the file's integer operators."""
    import ddddocr

    paths = {"import_onnx_path": str(model), "charsets_path": str(folder / "characters.json")}
    reader = ddddocr.DdddOcr(ocr=False, show_ad=False, **paths)
    return [reader.classification(file.read_bytes()) for file in _texts(folder).values()]


def _texts(folder: Path) -> dict[str, Path]:
    """Return the picture of each test text."""
    with (folder / "labels.csv").open() as file:
        return {row["text"]: folder / "captchas" / row["file"] for row in csv.DictReader(file) if row["part"] == "test"}


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
