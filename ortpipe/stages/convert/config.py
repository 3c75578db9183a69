"""The config of convert."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ortpipe.doors import later
from ortpipe.errors import ConfigError
from ortpipe.settings import Config, Positive, Seed
from ortpipe.stages.convert.sources import SOURCES, ModelSource

if TYPE_CHECKING:
    from ortpipe.stages.convert.changes.initialize import weight_files
    from ortpipe.stages.convert.changes.new_head import parse_layers
else:
    later(__name__)

VERSION = 27  # raised whenever the stage's results change


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


@dataclass(frozen=True)
class ConvertConfig(Config):
    """The source of the model, and the tolerance of its predictions.

    Attributes:
        source: a member of the catalogue of sources.
        dtype: the float type of a model built from an estimator; an .onnx file keeps its own.
        tolerance: largest allowed |onnx − source| / max(1, |source|) on real rows;
            by default 1e-4 for float32 and 1e-9 for float64, and 2e-2 for a quantized file.
        tie: true: train weights that are equal, or transposes, as one; false: give each node its own copy of a weight
            that several nodes read (exporters merge equal ones, such as zero biases); None: as in the source.
        head: new layers that replace the network's end.
        quantize: `qdq` rounds the operands of products to int8 and back, in training too; the run gets an int8 model.
        seed: of the weights of a new head, and of sampled weights.
        init: weights by name from another run, artifact, .onnx or .safetensors file, instead of the source's.
    """

    source: Annotated[ModelSource, SOURCES]
    dtype: Literal["float16", "float32", "float64"] = "float32"
    tolerance: Positive | None = None
    tie: bool | None = None
    init: WeightsFrom | None = None
    head: NewHead | None = None
    quantize: Literal["qdq"] | None = None
    seed: int = field(default=0, metadata={"identity": False})  # it takes effect in the parts that use it

    def __post_init__(self) -> None:
        if self.dtype != "float32" and SOURCES.name_of(type(self.source)) == "onnx":
            raise ConfigError(
                "{key} is the float type of a model that is built from an estimator; an .onnx file keeps its own.",
                key="dtype",
                got=self.dtype,
                fix="Leave {key} out, or set {at}source.dtype=float32, which reads float16 and bfloat16 as float32.",
            )
        for name in ("source", "head"):
            part = getattr(self, name)
            if getattr(part, "seed", 0) is None:
                object.__setattr__(self, name, replace(part, seed=self.seed))
