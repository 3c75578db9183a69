"""The catalogue of sources: each is a config, a frozen dataclass, that returns a forward model when called."""

from typing import Protocol

from ortpipe.data.rows import Data
from ortpipe.settings import Catalogue
from ortpipe.stages.convert.forward import Forward


class ModelSource(Protocol):
    """A config that returns a forward model when called."""

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Read, fit or load the source."""


SOURCES: Catalogue[type] = Catalogue(
    "source of models",
    {
        "cnn": "ortpipe.stages.convert.sources.networks.cnn:CNN",
        "mlp": "ortpipe.stages.convert.sources.networks.mlp:MLP",
        "onnx": "ortpipe.stages.convert.sources.onnx_file:OnnxFile",
        "sklearn": "ortpipe.stages.convert.sources.sklearn_estimator:SklearnEstimator",
        "tabular": "ortpipe.stages.convert.sources.networks.tabular:Tabular",
        "torch": "ortpipe.stages.convert.sources.torch_module:Torch",
        "transformer": "ortpipe.stages.convert.sources.networks.transformer:Transformer",
    },
)
