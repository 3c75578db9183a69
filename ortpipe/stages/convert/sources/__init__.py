"""The catalogue of sources: each is a frozen dataclass (its config) that is called for a forward model."""

from __future__ import annotations

from typing import Protocol

from ortpipe.data.rows import Data
from ortpipe.settings import Catalogue
from ortpipe.stages.convert.forward import Forward


class Source(Protocol):
    """A config that gives a forward model when called."""

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Read, fit or load the source."""


SOURCES: Catalogue[type] = Catalogue(
    "source of models",
    {
        "onnx": "ortpipe.stages.convert.sources.onnx_file:OnnxFile",
        "sklearn": "ortpipe.stages.convert.sources.sklearn_estimator:SklearnEstimator",
    },
)
