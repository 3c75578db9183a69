"""The catalogue of sources: each is a config, a frozen dataclass, that returns a forward model when called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ortpipe.settings import Catalogue

if TYPE_CHECKING:
    from ortpipe.data.rows import Data
    from ortpipe.stages.convert.forward import Forward

DESCRIPTION = "config.json"  # describes the model in a folder of Hugging Face's hub


class ModelSource(Protocol):
    """A config that returns a forward model when called."""

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Read, fit or load the source."""


SOURCES: Catalogue[type] = Catalogue(
    "source of models",
    {
        "auto": "ortpipe.stages.convert.sources.networks.auto:Automatic",
        "cnn": "ortpipe.stages.convert.sources.networks.cnn:CNN",
        "mlp": "ortpipe.stages.convert.sources.networks.mlp:MLP",
        "onnx": "ortpipe.stages.convert.sources.onnx_file:OnnxFile",
        "sklearn": "ortpipe.stages.convert.sources.sklearn_estimator:SklearnEstimator",
        "tabular": "ortpipe.stages.convert.sources.networks.tabular:Tabular",
        "torch": "ortpipe.stages.convert.sources.torch_module:Torch",
        "transformer": "ortpipe.stages.convert.sources.networks.transformer:Transformer",
    },
)
