"""How a step carries parameters: each as a variable of its own, or joined."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.doors import later
from ortpipe.graph.core.builder import Builder, Names

if TYPE_CHECKING:
    from ortpipe.stages.train.vector import Vector as vector_of
else:
    later(__name__)

Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, ir.Value]


@dataclass(frozen=True)
class Layout:
    """The variables that a step carries; products of the backward pass can accumulate directly into them."""

    shapes: Shapes  # of all parameters, in order

    def as_vector(self, dtype: ir.DataType) -> "Layout":
        """Return the layout that carries all parameters as one vector of this type."""
        vector: Layout = vector_of(self.shapes, dtype)
        return vector

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Convert parameters' arrays to variables'."""
        return {name: arrays[name] for name in self.shapes}

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Convert variables' arrays to parameters'."""
        return dict(variables)

    def write(
        self, op: Builder, names: Names, parameters: Values, gradients: Values
    ) -> dict[str, tuple[ir.Value, ir.Value]]:
        """Return each variable with its gradient in a step, whose nodes may be added by `op` or in front of all."""
        return {name: (parameters[name], gradients[name]) for name in self.shapes}
