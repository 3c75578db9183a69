"""The config of convert."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from ortpipe.doors import later
from ortpipe.errors import ConfigError
from ortpipe.settings import Config, Positive
from ortpipe.stages.convert.sources import SOURCES, ModelSource

if TYPE_CHECKING:
    from ortpipe.stages.convert.changes.config import NewHead, WeightsFrom
else:
    later(__name__)

VERSION = 29  # raised whenever the stage's results change


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
