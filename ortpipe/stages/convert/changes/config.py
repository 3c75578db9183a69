"""The settings of the changes that convert makes to a model: weights from elsewhere, and a new head."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.doors import later
from ortpipe.errors import ConfigError
from ortpipe.settings import Config, Seed

if TYPE_CHECKING:
    from ortpipe.stages.convert.changes.initialize import weight_files
    from ortpipe.stages.convert.changes.new_head import parse_layers
else:
    later(__name__)


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

    def files(self) -> tuple[Path, ...]:
        """Return the existing files that are read: the file and its external data."""
        return weight_files(self.path)


@dataclass(frozen=True)
class NewHead(Config):
    """The layers that replace a network's end.

    Attributes:
        layers: `linear: width`, `dropout: share`, `pool: mean` or `max` (over all positions), and `flatten`, `relu`,
            `tanh`, `gelu`, `sigmoid`, `softmax`. A last sigmoid or softmax makes a classifier; without them the head
            predicts values, or raw scores if convert.source.task names such a task.
        cut: name or glob of the value that the first layer reads, [N, F], or [N, C, …] for pool and flatten.
        seed: of the new weights; by default convert's.
    """

    layers: tuple[str | Mapping[str, Any], ...]
    cut: str | None = None
    seed: Seed | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("A head has layers.", key="layers", got="none", fix="Write [{linear: 10}, softmax].")

    @functools.cached_property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        """The layers, each by its name and its setting (None where it has none)."""
        return parse_layers(self.layers)
