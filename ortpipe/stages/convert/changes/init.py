"""The settings of initial weights from another file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ortpipe.graph.files import serial
from ortpipe.settings import Config


@dataclass(frozen=True)
class WeightsFrom(Config):
    """The source of a model's initial weights.

    Attributes:
        path: a run's or an artifact's folder, an .onnx file, or a .safetensors file.
        map: name or glob in the file → name in the model, where `*` and `?` insert the matched text; null
            leaves them out. The first match counts; names without a match stay.
        transpose: names or globs of the model's weights that the file holds transposed, such as those of MatMul in an
            exported file against PyTorch's.
        strict: reject weights of the model that get no value, and floats of the file that none uses; else a note
            lists them.
    """

    path: str = field(metadata={"identity": False})  # `files` are compared by content
    map: Mapping[str, str | None] = field(default_factory=dict)
    transpose: tuple[str, ...] = ()
    strict: bool = True

    @property
    def file(self) -> Path:
        """The file; in a folder, its model."""
        path = Path(self.path)
        return path / "model.onnx" if path.is_dir() else path

    def files(self) -> tuple[Path, ...]:
        """Return the existing files that are read: the file and its external data."""
        file = self.file
        return serial.files(file) if file.suffix != ".safetensors" else (file,) if file.is_file() else ()
