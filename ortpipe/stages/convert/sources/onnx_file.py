"""An .onnx file, external data included, or a folder of Hugging Face's hub or optimum with config.json."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from ortpipe.bounded import TEXT, parse_json, read
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError
from ortpipe.graph.core.protos import Weights
from ortpipe.graph.files import serial
from ortpipe.settings import checked
from ortpipe.stages.convert.imported import Imported
from ortpipe.stages.convert.reading.graph_settings import GraphSettings
from ortpipe.stages.convert.reading.prediction import check_heads, choose_prediction
from ortpipe.stages.convert.reading.reading import (
    fix_sizes,
    free_rows,
    lift_weights,
    opened,
    put_rows_first,
    rewrite_dialects,
    rewrite_ml,
)
from ortpipe.stages.convert.sources.catalogue import DESCRIPTION

PLACES = ("model.onnx", "onnx/model.onnx")
TASKS = {"single_label_classification": "multiclass", "multi_label_classification": "multilabel"}


@dataclass(frozen=True)
class OnnxFile(GraphSettings):
    """A forward model on disk.

    Attributes:
        path: the file, or a folder with model.onnx and config.json, whose labels are the classes.
    """

    path: str = field(metadata={"identity": False})  # `files` are compared by content

    @property
    def origin(self) -> str:
        """The file."""
        return self.path

    def files(self) -> tuple[Path, ...]:
        """Return the existing files that are read: the model and its external data."""
        path = Path(self.path)
        if not path.is_dir():
            return serial.files(path)
        description = path / DESCRIPTION
        return (*serial.files(model_file(path)), *([description] if description.is_file() else []))

    def __call__(self, data: Data | None, dtype: str) -> Imported:
        """Read the file; `dtype` is ignored, the model keeps its own types."""
        path = Path(self.path)
        if not path.is_dir():
            model, weights = serial.read_apart(path)
            return from_model(model, self, data, weights)
        described, note = meaning(path)
        unset = {name: value for name, value in described.items() if getattr(self, name) is None}
        settings = dataclasses.replace(self, path=str(model_file(path)), **unset)
        model, weights = serial.read_apart(Path(settings.path))
        forward = from_model(model, settings, data, weights)
        return dataclasses.replace(forward, notes=(*([note] if note else []), *forward.notes))


def from_path(path: str | Path, settings: GraphSettings, data: Data | None) -> Imported:
    """Return the forward form of a file's model, as settings describe it."""
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(GraphSettings)}
    return OnnxFile(path=str(path), **fields)(data, "")


def from_model(
    model: onnx.ModelProto, config: GraphSettings, data: Data | None = None, weights: Weights | None = None
) -> Imported:
    """Return a model's forward form: loadable opset, ai.onnx.ml rewritten, any number of rows on the first axis.

    `weights` are the values of the initializers that are stored outside of `model`.
    """
    reading = opened(model, config, data, weights)
    put_rows_first(reading)
    dialects = rewrite_dialects(reading)
    iterated = rewrite_ml(reading)
    fix_sizes(reading)
    lift_weights(reading)
    prediction = choose_prediction(reading)
    heads = free_rows(reading, [prediction, *check_heads(reading, prediction)])
    meanings = {name: reading.meaning_of(name, head, is_head=name != prediction) for name, head in heads.items()}
    return Imported(
        reading.model,
        prediction=prediction,
        meaning_of=meanings.pop(prediction),
        expected=reading.original.run,
        session=reading.original.session_of,
        heads=meanings,
        origin=config.origin,
        notes=(*reading.file_notes, *dialects.notes, *reading.notes),
        rounding=max(dialects.rounding, iterated),
        rounding_reason=dialects.reason,
    )


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
