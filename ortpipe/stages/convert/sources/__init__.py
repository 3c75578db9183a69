"""The catalogue of sources: each is a config, a frozen dataclass, that returns a forward model when called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.data.rows import Data
from ortpipe.graph.core.apart import Weights
from ortpipe.runtime.session import Session
from ortpipe.settings import Catalogue
from ortpipe.stages.convert.outputs.meaning import Meaning
from ortpipe.stages.convert.sources.estimators.objective import Objective


@dataclass(frozen=True)
class Forward:
    """A forward model before it becomes an artifact."""

    model: ir.Model  # the graph in standard operators
    prediction: str  # the output that losses and metrics read
    meaning: Callable[[np.ndarray | None], Meaning]  # from the prediction of real rows, or None without rows
    # the source's own output for a model's inputs; None: the graph is the source
    expected: Callable[[Mapping[str, np.ndarray], str], np.ndarray] | None
    origin: str  # the source's name in messages
    notes: tuple[str, ...] = ()  # changes and assumptions, for the user
    heads: Mapping[str, Callable[[np.ndarray | None], Meaning]] = field(default_factory=dict)  # of further outputs
    # float initializer → why it is not trained, or None: it is; for all others, their use decides
    untrained_reasons: Mapping[str, str | None] = field(default_factory=dict)
    as_given: bool = False  # `expected` takes the rows' own inputs, not cast to the model's types
    fitted: Any = None  # the estimator, if it was fitted for this model
    objective: Objective | None = None  # the source's training objective
    scaled: bool = False  # the prediction is scaled to mean and deviation of the labels
    # a model and its weights → the source's session if it has loaded the same graph
    session: Callable[[onnx.ModelProto, Weights], Session | None] | None = None
    rounding: float = 0.0  # error of the source's own rounding, relative to the largest prediction
    rounding_reason: str = ""  # for messages


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
