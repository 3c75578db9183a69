"""A static page that trains a bundle in the browser: facts about the rows, and rows to replay."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe.artifact import Artifact, Facts
from ortpipe.bundle.web_runtime import runtime_files
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.labels import class_index
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import TrainError

PIXEL = re.compile(r".*?(\d+)_(\d+)")  # a column of a grid of pixels: row, column
WORDS = 200  # the most words that a form lists for a column
CHECKED = 200  # held-out rows, which show that a correction spoils nothing else
MOST_NUMBERS = 2**19  # of all rows of a part


def page_files(
    artifact: Artifact, data: Data, replay: int, about: Mapping[str, Any], runtime: Path | None
) -> dict[str, bytes]:
    """Return the files of a page that trains the bundle of a model in the browser, by their path in the folder.

    Args:
        artifact: a gradient model with one prediction and one label per row.
        data: the rows of its run; some of the training and validation rows become a part of the page.
        replay: training rows to train on together with corrections.
        about: the `title` of the page, the `label` of a table, and whether rows are in any order (`shuffle`).
        runtime: a folder of the package onnxruntime-web; by default, see `runtime_files`.

    Raises:
        TrainError: the page has no input for such rows or labels, or onnxruntime-web is missing.
    """
    _check_label(artifact.facts, data.train.head(1))
    parts = {"replay": (data.train, replay), "check": (data.validation, CHECKED)}
    rows = {
        name: _some(part.sample(), count, spaced=about["shuffle"])
        for name, (part, count) in parts.items()
        if part is not None
    }
    shown = {name: _columns(artifact, some) for name, some in rows.items()}
    facts = {**about, **_kind(artifact, data.train.sample())}
    written = {"page.json": facts, "rows.json": shown}
    texts = {name: json.dumps(value, separators=(",", ":")).encode() for name, value in written.items()}
    return {**texts, **static_files(), **runtime_files(runtime)}


def static_files() -> dict[str, bytes]:
    """Return the files that all pages share: next to the code in a checkout, inside the package in a wheel."""
    package = Path(__file__).resolve().parents[1]
    installed, checkout = package / "web", package.parent / "web"
    source = installed if installed.is_dir() else checkout / "src"
    folders = {"": (installed if installed.is_dir() else checkout) / "page", "trainer/": source}
    return {
        f"{place}{file.name}": file.read_bytes()
        for place, folder in folders.items()
        for file in sorted(folder.iterdir())
        if file.suffix in (".html", ".css", ".js")
    }


def _check_label(facts: Facts, first: Rows) -> None:
    """Raise unless each row has one label: a class, or of other rows than sounds a number."""
    several = {
        "several predictions": facts.heads,
        "several labels per row": first.label[0].size > 1,
    }
    several |= {"a label for each element": facts.blank is not None, "a teacher's shares of all classes": facts.soft}
    several |= {f"a prediction of {facts.link}": facts.link not in (None, "log") and len(facts.levels) != 1}
    several |= {"sounds with a number as label": facts.classes is None and facts.prepared.get("source") == "audio"}
    if reasons := [name for name, is_so in several.items() if is_so]:
        fix = "Leave out --page; the bundle needs none."
        raise TrainError("A page needs a model with one label per row.", got=reasons[0], fix=fix)


def _some(rows: Rows, count: int, *, spaced: bool) -> Rows:
    """Return evenly spaced rows in their order, or the first ones; fewer if they are long."""
    numbers = sum(array[:1].size for array in rows.inputs.values())
    most = min(len(rows), count, max(1, MOST_NUMBERS // numbers))
    return rows.take(np.linspace(0, len(rows) - 1, most).round().astype(int) if spaced else slice(most))


def _columns(artifact: Artifact, rows: Rows) -> dict[str, Any]:
    """Return the values of each column or input, null if missing, and the labels: as predictions have them."""
    inputs, facts = feed_inputs(artifact.signature, artifact.facts, rows), artifact.facts
    classes = facts.classes and [facts.classes[place] for place in class_index(facts, rows.label)]
    labels = classes or _plain(rows.label.ravel())
    return {"inputs": {name: _plain(array) for name, array in inputs.items()}, "labels": labels}


def _plain(array: np.ndarray) -> list[Any]:
    if array.dtype.kind == "f":  # the shortest number that is the same float32
        array = np.array([None if np.isnan(v) else float(str(v)) for v in array.ravel()], object).reshape(array.shape)
    return array.tolist()


def _kind(artifact: Artifact, rows: Rows) -> dict[str, Any]:
    """Return how the page takes a row: as a picture, as a sound, or as a form with the columns of a table."""
    facts, inputs = artifact.facts, feed_inputs(artifact.signature, artifact.facts, rows)
    (name, first), *others = inputs.items()
    names = rows.columns.get(next(iter(rows.inputs)), ())
    if facts.prepared.get("source") == "audio" and not others:
        return {"kind": "sound", "input": name, **facts.prepared}
    is_raw = next(iter(rows.inputs.values())).dtype == np.uint8
    if not others and (sizes := _picture(first, names, facts.prepared, is_raw=is_raw)) is not None:
        return {"kind": "picture", "input": name, **sizes}
    if all(array.ndim == 1 or (array.ndim == 2 and array.shape[1] == len(names)) for array in inputs.values()):
        return {"kind": "table", "columns": list(_table(inputs, rows, names))}
    rule, fix = "A page takes pictures, sounds, or tables of columns.", "Leave out --page; the bundle needs none."
    got = ", ".join(f"{name} {list(array.shape[1:])}" for name, array in inputs.items())
    raise TrainError(rule, got=f"rows of {got}", fix=fix)


def _picture(
    array: np.ndarray, names: tuple[str, ...], prepared: Mapping[str, Any], *, is_raw: bool
) -> dict[str, Any] | None:
    """Return the size of pictures and the numbers of their paper and ink; None if the rows are no pictures.

    `is_raw`: their values are the levels of pixels, 0 to 255.
    """
    grid = [match and (int(match[1]), int(match[2])) for match in map(PIXEL.fullmatch, names)]
    sizes = array.shape[1:]
    if grid and all(grid):
        height, width = (1 + max(place[axis] for place in grid if place) for axis in (0, 1))
        if grid != list(np.ndindex(height, width)):
            return None
        channels, last = 1, False
    elif len(sizes) == 3 and (sizes[0] in (1, 3) or sizes[2] in (1, 3)):
        last = sizes[0] not in (1, 3)
        channels, height, width = (sizes[2], *sizes[:2]) if last else sizes
    else:
        return None
    least, most = float(array.min()), float(array.max())
    pixels = array.reshape(len(array), height, width, channels) if last else array.reshape(-1, channels, height, width)
    pixels = pixels.mean(axis=3 if last else 1)
    corners = np.median(pixels[:, [0, 0, -1, -1], [0, -1, 0, -1]])
    paper, ink = (least, most) if abs(corners - least) <= abs(corners - most) else (most, least)
    used = np.abs(pixels - paper) > abs(ink - paper) / 4
    box = [float(used.any(axis).sum(1).mean()) for axis in (2, 1)]  # how many lines and columns have ink
    names = ("resize", "crop", "color", "scale", "mean", "std")
    recorded = {name: prepared[name] for name in names if name in prepared}
    if is_raw and (channels == 3 or "color" in recorded):
        recorded["scale"] = 1
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "last": last,
        "paper": paper,
        "ink": ink,
        "box": box,
        "whole": array.dtype.kind in "biu",
        "pixels": recorded,
    }


def _table(inputs: Mapping[str, np.ndarray], rows: Rows, names: tuple[str, ...]) -> Any:
    """Yield each column with the words or the range of its training rows."""
    for name, array in inputs.items():
        for place, column in enumerate(names) if array.ndim == 2 else [(None, name)]:
            values = array if place is None else array[:, place]
            fact = {"name": column, "input": name, "place": place}
            raw = rows.kept.get(name)
            if values.dtype.kind in "iuf":
                numbers = values[~np.isnan(values)] if values.dtype.kind == "f" else values
                ends = [float(str(number)) for number in (numbers.min(), numbers.max())] if len(numbers) else [0, 1]
                yield {**fact, "kind": "number", "range": ends}
            elif raw is not None and raw.kind == "date":
                yield {**fact, "kind": "date"}
            else:
                words, counts = np.unique(values[values != ""].astype(str), return_counts=True)
                common = np.sort(words[np.argsort(-counts, kind="stable")][:WORDS]).tolist()
                truth = raw is not None and raw.of == "truth"
                kind = "truth" if truth else "word" if len(words) <= WORDS else "text"
                yield {**fact, "kind": kind, "words": common}
