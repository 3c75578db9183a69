"""The model of a file as it is: what the converted one must predict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx

from ortpipe.graph.apart import Weights, attach
from ortpipe.graph.check import parsed
from ortpipe.graph.modes import to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.inputs import Fixed


@dataclass(frozen=True)
class Original:
    """A model, and how rows are given to it."""

    model: onnx.ModelProto  # the file's, with nothing of its inputs changed
    weights: Weights = field(default_factory=dict)  # of its initializers that have no values in it
    fixed: Mapping[str, Fixed] = field(default_factory=dict)  # input → what it always is
    axes: Mapping[str, int] = field(default_factory=dict)  # input or output → its axis of rows, if not the first
    batch: int | None = None  # how many rows it takes, no more and no less; None: any number
    quantized: bool = False  # it is run node by node, for onnxruntime fuses and rounds otherwise than the file says

    @cached_property
    def _session(self) -> Session:
        inference, fused = parsed(self.model), not self.quantized
        attach(inference, self.weights)
        if to_inference(inference):
            return Session(inference, fused=fused)
        return Session(self.model, weights=self.weights, fused=fused)

    def run(self, inputs: Mapping[str, np.ndarray], output: str, axis: int | None = None) -> np.ndarray:
        """Return an output of rows, as many at a time as it takes; the last one fills the last batch.

        `axis` is where the output has its rows; what has none, of a model of one row, gets a first axis for them.
        """
        axis = self.axes.get(output, 0) if axis is None else axis
        count = len(next(iter(inputs.values())))
        size = self.batch or count
        found = []
        for first in range(0, count, size):
            result = self.once(inputs, np.minimum(np.arange(first, first + size), count - 1), output)
            without = size == 1 and not (result.ndim > axis and result.shape[axis] == 1)
            found.append(result[None] if without else np.moveaxis(result, axis, 0))
        return np.concatenate(found)[:count]

    def once(self, inputs: Mapping[str, np.ndarray], places: np.ndarray, output: str) -> np.ndarray:
        """Return an output of the rows at these places, as the model gives it."""
        rows = {name: np.moveaxis(array[places], 0, self.axes.get(name, 0)) for name, array in inputs.items()}
        fixed = {name: entry.array(len(places)) for name, entry in self.fixed.items()}
        return self._session.run({**rows, **fixed}, [output])[0]
