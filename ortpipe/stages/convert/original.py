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
    """A model, and how rows are fed to it."""

    model: onnx.ModelProto  # as in the file, its inputs unchanged
    weights: Weights = field(default_factory=dict)  # values of the initializers that are stored outside of `model`
    fixed: Mapping[str, Fixed] = field(default_factory=dict)  # input → its constant value
    axes: Mapping[str, int] = field(default_factory=dict)  # input or output → its axis of rows, where not 0
    batch: int | None = None  # the only number of rows it accepts; None: any
    quantized: bool = False  # run without fusions, whose rounding differs from the file's

    @cached_property
    def _session(self) -> Session:
        inference, fused = parsed(self.model), not self.quantized
        attach(inference, self.weights)
        if to_inference(inference):
            return Session(inference, fused=fused)
        return Session(self.model, weights=self.weights, fused=fused)

    def run(self, inputs: Mapping[str, np.ndarray], output: str, axis: int | None = None) -> np.ndarray:
        """Return an output, computed batch by batch; copies of the last row fill up the last batch.

        `axis` is the output's axis of rows. An output without one, of a model for one row, gets a first axis.
        """
        axis = self.axes.get(output, 0) if axis is None else axis
        count = len(next(iter(inputs.values())))
        size = self.batch or count
        results = []
        for first in range(0, count, size):
            result = self.once(inputs, np.minimum(np.arange(first, first + size), count - 1), output)
            without_rows = size == 1 and not (result.ndim > axis and result.shape[axis] == 1)
            results.append(result[None] if without_rows else np.moveaxis(result, axis, 0))
        return np.concatenate(results)[:count]

    def once(self, inputs: Mapping[str, np.ndarray], places: np.ndarray, output: str) -> np.ndarray:
        """Return an output of the rows at these places, its axes as in the model."""
        rows = {name: np.moveaxis(array[places], 0, self.axes.get(name, 0)) for name, array in inputs.items()}
        fixed = {name: entry.array(len(places)) for name, entry in self.fixed.items()}
        return self._session.run({**rows, **fixed}, [output])[0]
