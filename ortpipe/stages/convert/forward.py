"""What every source gives: a graph, what it means, and the prediction it must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.stages.convert.meaning import Meaning


@dataclass(frozen=True)
class Forward:
    """A forward model on its way into an artifact.

    Attributes:
        model: the graph in standard operators.
        prediction: the output that losses and metrics read.
        meaning: what the prediction is, by its values on real rows (None where there are none).
        expected: the source's own prediction for a model's inputs.
        origin: what to say of the source in messages.
    """

    model: ir.Model
    prediction: str
    meaning: Callable[[np.ndarray | None], Meaning]
    expected: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    origin: str
