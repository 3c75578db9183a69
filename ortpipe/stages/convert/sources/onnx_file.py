"""An .onnx file (external data included), from any exporter."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from ortpipe.data.rows import Data
from ortpipe.graph.core.apart import Weights
from ortpipe.graph.files import serial
from ortpipe.stages.convert.imported import Imported
from ortpipe.stages.convert.reading.graph_settings import GraphSettings
from ortpipe.stages.convert.reading.prediction import check_heads, choose_prediction
from ortpipe.stages.convert.reading.reading import opened
from ortpipe.stages.convert.reading.steps import (
    fix_sizes,
    free_rows,
    lift_weights,
    put_rows_first,
    rewrite_dialects,
    rewrite_ml,
)
from ortpipe.stages.convert.sources import snapshot


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
        description = path / snapshot.DESCRIPTION
        return (*serial.files(snapshot.model_file(path)), *([description] if description.is_file() else []))

    def __call__(self, data: Data | None, dtype: str) -> Imported:
        """Read the file; `dtype` is ignored, the model keeps its own types."""
        path = Path(self.path)
        if not path.is_dir():
            model, weights = serial.read_apart(path)
            return from_model(model, self, data, weights)
        described, note = snapshot.meaning(path)
        unset = {name: value for name, value in described.items() if getattr(self, name) is None}
        settings = dataclasses.replace(self, path=str(snapshot.model_file(path)), **unset)
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
