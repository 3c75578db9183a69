"""Folders of Hugging Face's hub and optimum: a model in ONNX, and config.json, which describes its prediction."""

from pathlib import Path
from typing import Any

from ortpipe.bounded import TEXT, parse_json, read
from ortpipe.errors import ConvertError
from ortpipe.settings import checked

PLACES = ("model.onnx", "onnx/model.onnx")
DESCRIPTION = "config.json"
TASKS = {"single_label_classification": "multiclass", "multi_label_classification": "multilabel"}


def model_file(folder: Path) -> Path:
    """Return the model file in a folder."""
    files = [folder / place for place in PLACES if (folder / place).is_file()] or sorted(folder.glob("*.onnx"))
    if len(files) == 1 or (files and files[0].name == "model.onnx"):
        return files[0]
    raise ConvertError(
        "{key} must be an .onnx file, or a folder with one, as optimum exports it.",
        key="path",
        got=f"{folder} with {', '.join(file.name for file in files) or 'none'}",
        fix="Name the file itself.",
    )


def meaning(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return the prediction's settings (task, scores, classes) from config.json, and a note.

    A classifier of transformers predicts raw scores, in the order of id2label.
    """
    file = folder / DESCRIPTION
    if not file.is_file():
        return {}, None
    try:
        description = checked(parse_json(read(file, TEXT)), dict[str, Any], DESCRIPTION)
        problem = description.get("problem_type")
        names = checked(description.get("architectures") or [""], tuple[str, ...], "architectures")
        labels = [
            label for _, label in sorted((int(place), str(label)) for place, label in description["id2label"].items())
        ]
    except (ValueError, KeyError, AttributeError):
        return {}, f"{DESCRIPTION} does not name the classes"
    if problem == "regression" or (len(labels) == 1 and problem is None):
        return {"task": "regression"}, f"{DESCRIPTION}: a regression"
    if problem is None and not names[0].endswith("Classification"):
        return {}, None  # other models have default labels without meaning
    task = TASKS.get(str(problem), "multiclass")
    first_labels = ", ".join(labels[:5]) + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
    return (
        {"task": task, "scores": "logits", "classes": tuple(labels)},
        f"{DESCRIPTION}: {task}, raw scores of {first_labels} (convert.source.classes)",
    )
