"""File types of short snippets: magika's model, fine-tuned on pieces of source files."""

from __future__ import annotations

import collections
import json
import shutil
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path

import numpy as np
from recipe import main

PACKAGE = "magika"
NEEDS = ("magika",)
METRIC = "accuracy"
CHECK = "accuracy of Magika.identify_bytes"
TYPES = {
    ".py": "python",
    ".c": "c",
    ".h": "c",
    ".cpp": "cpp",
    ".js": "javascript",
    ".css": "css",
    ".html": "html",
    ".json": "json",
    ".yaml": "yaml",
    ".toml": "toml",
    ".md": "markdown",
    ".rst": "rst",
    ".xml": "xml",
    ".svg": "svg",
    ".csv": "csv",
    ".f90": "fortran",
    ".jinja": "jinja",
}
SIZES = (60, 240)  # bytes of a snippet
PARTS = {"train": 80, "validation": 6, "test": 12}  # snippets of each type


def rows(folder: Path, short: bool) -> None:
    """Write snippets of the files of installed packages, and their types; each folder is in one part only."""
    model = _model_folder()
    shutil.copy(model / "model.onnx", folder / "before.onnx")
    labels = json.loads((model / "config.min.json").read_text())["target_labels_space"]
    random = np.random.default_rng(0)
    found = _files("numpy/**/*.*" if short else "**/*.*")
    for part, count in PARTS.items():
        X, y, texts = [], [], []
        for kind, files in [*found[part].items()][: 3 if short else None]:
            for number in range(2 if short else count):
                snippet = _snippet(files[number % len(files)], random)
                X.append(_as_row(snippet))
                y.append(labels.index(kind))
                texts.append(snippet.hex())
        np.savez(folder / f"{part}.npz", X=np.array(X, np.int32), y=np.array(y))
    (folder / "snippets.json").write_text(json.dumps([texts, y]))  # those of the test part


def dropin(model: Path, folder: Path) -> float:
    """Return the accuracy of magika with a model file, on the snippets of the test rows."""
    from magika import Magika, PredictionMode

    texts, y = json.loads((folder / "snippets.json").read_text())
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(_model_folder() / "config.min.json", place)
        shutil.copy(model, Path(place, "model.onnx"))
        magika = Magika(model_dir=Path(place), prediction_mode=PredictionMode.BEST_GUESS)
        labels = json.loads(Path(place, "config.min.json").read_text())["target_labels_space"]
        found = [magika.identify_bytes(bytes.fromhex(text)).dl.label for text in texts]
    return float(np.mean([label == labels[index] for label, index in zip(found, y, strict=True)]))


def picture(folder: Path):
    """Return the accuracy of each type before and after."""
    import matplotlib.pyplot as plt
    import onnxruntime

    labels = json.loads((_model_folder() / "config.min.json").read_text())["target_labels_space"]
    rows = np.load(folder / "test.npz")
    types = np.unique(rows["y"])
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for shift, file in ((-0.2, "before.onnx"), (0.2, "trained.onnx")):
        session = onnxruntime.InferenceSession(str(folder / file), providers=["CPUExecutionProvider"])
        batches = np.array_split(rows["X"], 10)  # for memory
        name = session.get_inputs()[0].name
        guesses = np.concatenate([session.run(None, {name: batch})[0].argmax(1) for batch in batches])
        right = [np.mean(guesses[rows["y"] == kind] == kind) for kind in types]
        axes.bar(np.arange(len(types)) + shift, right, 0.4, label=file)
    axes.set_xticks(range(len(types)), [labels[kind] for kind in types], rotation=45, ha="right")
    axes.set_ylabel("accuracy on test snippets")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return figure


def _model_folder() -> Path:
    import magika

    [model] = Path(magika.__file__).parent.glob("models/*/model.onnx")
    return model.parent


def _files(pattern: str) -> dict[str, dict[str, list[Path]]]:
    """Return the files of each part and type; the hash of its folder decides the part of a file."""
    found = {part: collections.defaultdict(list) for part in PARTS}
    for root in {Path(sysconfig.get_paths()[name]) for name in ("purelib", "stdlib")}:
        for file in sorted(path for path in root.glob(pattern) if path.suffix in TYPES):
            place = zlib.crc32(str(file.parent.relative_to(root)).encode()) % 10
            part = "train" if place < 7 else "validation" if place == 7 else "test"
            found[part][TYPES[file.suffix]].append(file)
    order = np.random.default_rng(0)
    return {
        part: {kind: [files[kind][place] for place in order.permutation(len(files[kind]))] for kind in sorted(files)}
        for part, files in found.items()
    }


def _snippet(file: Path, random: np.random.Generator) -> bytes:
    """Return some lines near the beginning of a file, cut to a random size."""
    with file.open("rb") as opened:
        content = opened.read(2**14)
    starts = np.flatnonzero(np.frombuffer(content[: -SIZES[0]], np.uint8) == ord("\n")) + 1
    start = int(random.choice(starts)) if len(starts) else 0
    return content[start : start + int(random.integers(*SIZES))].strip() or b"\n" * SIZES[0]


def _as_row(content: bytes) -> np.ndarray:
    """Return the input of magika's model: the first and last 1,024 bytes, padded with 256."""
    row = np.full(2048, 256, np.int32)
    row[: len(content)] = row[2048 - len(content) :] = list(content)
    return row


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
