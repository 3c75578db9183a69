"""What every source gives: a graph, what it means, and the prediction it must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.artifact import Task


@dataclass(frozen=True)
class Forward:
    """A forward model on its way into an artifact.

    Attributes:
        model: the graph in standard operators.
        task: what the prediction is.
        prediction: the output that losses and metrics read.
        logits: the value before the last Sigmoid or Softmax, if any.
        classes: the label of each class index.
        expected: the source's own prediction for a model's inputs.
        origin: what to say of the source in messages.
    """

    model: ir.Model
    task: Task
    prediction: str
    logits: str | None
    classes: tuple[int | str, ...] | None
    expected: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    origin: str
