"""A folder as Hugging Face's hub and optimum lay it out: a model in ONNX, and config.json, which says what it means."""

import json
from pathlib import Path
from typing import Any

from ortpipe.errors import ConvertError

PLACES = ("model.onnx", "onnx/model.onnx")
DESCRIPTION = "config.json"
TASKS = {"single_label_classification": "multiclass", "multi_label_classification": "multilabel"}


def model_file(folder: Path) -> Path:
    """Return the model of a folder."""
    found = [folder / place for place in PLACES if (folder / place).is_file()] or sorted(folder.glob("*.onnx"))
    if len(found) == 1 or (found and found[0].name == "model.onnx"):
        return found[0]
    raise ConvertError(
        "{key} must be an .onnx file, or a folder with one, as optimum exports it.",
        key="path",
        got=f"{folder} with {', '.join(file.name for file in found) or 'none'}",
        fix="Name the file itself.",
    )


def meaning(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return what config.json says of the prediction (task, scores, classes), and what to say of that.

    A transformers model that classifies gives raw scores, in the order of id2label.
    """
    file = folder / DESCRIPTION
    if not file.is_file():
        return {}, None
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        kind, names = said.get("problem_type"), said.get("architectures") or [""]
        labels = [label for _, label in sorted((int(place), str(label)) for place, label in said["id2label"].items())]
    except (ValueError, KeyError, AttributeError, UnicodeDecodeError):
        return {}, f"{DESCRIPTION} says nothing of classes"
    if kind == "regression" or (len(labels) == 1 and kind is None):
        return {"task": "regression"}, f"{DESCRIPTION}: a regression"
    if kind is None and not str(names[0]).endswith("Classification"):
        return {}, None  # which has labels by default, of no output
    task = TASKS.get(str(kind), "multiclass")
    shown = ", ".join(labels[:5]) + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
    return (
        {"task": task, "scores": "logits", "classes": tuple(labels)},
        f"{DESCRIPTION}: {task}, raw scores of {shown} (convert.source.classes)",
    )
