"""The catalogue of sources: each is a frozen dataclass (its config) that is called for a forward model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Data
from ortpipe.settings import Catalogue
from ortpipe.stages.convert.meaning import Meaning


@dataclass(frozen=True)
class Forward:
    """A forward model on its way into an artifact."""

    model: ir.Model  # the graph in standard operators
    prediction: str  # the output that losses and metrics read
    meaning: Callable[[np.ndarray | None], Meaning]  # by the prediction of real rows (None where there are none)
    # the source's own output for a model's inputs; None: the graph is the source
    expected: Callable[[Mapping[str, np.ndarray], str], np.ndarray] | None
    origin: str  # what to say of the source in messages
    notes: tuple[str, ...] = ()  # what was changed or assumed on the way, for the user
    heads: Mapping[str, Callable[[np.ndarray | None], Meaning]] = field(default_factory=dict)  # of further outputs
    # of float initializers why each is not trained, None: it is; of others, what reads them decides
    said: Mapping[str, str | None] = field(default_factory=dict)
    as_given: bool = False  # expected takes inputs as the rows have them, not cast to the model's types
    fitted: Any = None  # the estimator, where it was fitted for this model
    objective: Mapping[str, Any] | None = None  # what the source was fitted by: see `Facts.objective`
    scaled: bool = False  # the prediction is scaled to mean and deviation of the labels
    rounding: float = 0.0  # how far the source's own rounding may move a prediction, of its largest


class ModelSource(Protocol):
    """A config that gives a forward model when called."""

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Read, fit or load the source."""


SOURCES: Catalogue[type] = Catalogue(
    "source of models",
    {
        "cnn": "ortpipe.stages.convert.sources.cnn:CNN",
        "mlp": "ortpipe.stages.convert.sources.mlp:MLP",
        "onnx": "ortpipe.stages.convert.sources.onnx_file:OnnxFile",
        "sklearn": "ortpipe.stages.convert.sources.sklearn_estimator:SklearnEstimator",
        "tabular": "ortpipe.stages.convert.sources.tabular:Tabular",
        "torch": "ortpipe.stages.convert.sources.torch_module:Torch",
        "transformer": "ortpipe.stages.convert.sources.transformer:Transformer",
    },
)
