"""A forward model that others made, with its source's own predictions to compare with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from ortpipe.graph.core.protos import Weights
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.forward import Forward, Meaning
from ortpipe.stages.convert.objective import Objective

MeaningOf = Callable[[np.ndarray | None], Meaning]  # from the prediction of real rows, or None without rows


@dataclass(frozen=True, kw_only=True)
class Imported(Forward):
    """A model from a file, a module or an estimator; for initializers without a reason, their use decides."""

    expected: Callable[[Mapping[str, np.ndarray], str], np.ndarray]  # the source's own output for a model's inputs
    meaning_of: MeaningOf
    heads: Mapping[str, MeaningOf] = field(default_factory=dict)  # of further outputs
    as_given: bool = False  # `expected` takes the rows' own inputs, not cast to the model's types
    fitted: Any = None  # the estimator, if it was fitted for this model
    objective: Objective | None = None  # the source's training objective
    # a model and its weights → the source's session if it has loaded the same graph
    session: Callable[[onnx.ModelProto, Weights], Session | None] | None = None
    rounding: float = 0.0  # error of the source's own rounding, relative to the largest prediction
    rounding_reason: str = ""  # for messages
