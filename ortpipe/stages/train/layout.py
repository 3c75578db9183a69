"""How parameters, and what has their shapes, are carried from step to step: each by itself, or as one flat vector."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.graph.builder import Builder

VECTOR = "parameters"  # the name of the flat vector
Values = Mapping[str, ir.Value]


@dataclass(frozen=True)
class Layout:
    """Either each parameter is a variable, or all of them, one behind the other, are one.

    Products of the backward pass can be accumulated onto variables of their own; where that does not serve, a vector is
    faster, because a node costs more than a small copy.
    """

    shapes: Mapping[str, tuple[int, ...]]  # of the parameters, by name
    vector: ir.DataType | None = None  # the type of the one vector: parameters of halves are cast from it

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return the variables' arrays of the parameters'."""
        ordered = {name: arrays[name] for name in self.shapes}
        return (
            ordered if self.vector is None else {VECTOR: np.concatenate([array.ravel() for array in ordered.values()])}
        )

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Return the parameters' arrays of the variables'."""
        if self.vector is None:
            return dict(variables)
        parts = zip(self.shapes.items(), np.split(variables[VECTOR], np.cumsum(self._sizes)[:-1]), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def write(
        self, front: Builder, op: Builder, parameters: Values, gradients: Values
    ) -> dict[str, tuple[ir.Value, ir.Value]]:
        """Return each variable and its gradient; a vector is cut up in front of a step, and gradients joined behind."""
        if self.vector is None:
            return {name: (value, gradients[name]) for name, value in parameters.items()}
        vector, line = op.input(VECTOR, self.vector, [sum(self._sizes)]), op.const(np.array([-1], np.int64))
        sizes = front.const(np.array(self._sizes, np.int64))
        parts = front.Split(vector, sizes, outputs=len(self.shapes), axis=0) if len(self.shapes) > 1 else [vector]
        lines = []
        for part, (name, shape) in zip(parts, self.shapes.items(), strict=True):
            parameter, gradient = parameters[name], gradients[name]
            if len(shape) != 1:
                part = front.Reshape(part, front.const(np.array(shape, np.int64)))
                gradient = op.Reshape(gradient, line)
            if parameter.dtype != self.vector:
                part, gradient = front.cast(part, parameter), op.cast(gradient, vector)
            part.type, part.shape = parameter.type, parameter.shape
            ir.convenience.replace_all_uses_with(parameter, part)
            lines.append(gradient)
        return {VECTOR: (vector, op.Concat(*lines, axis=0) if len(lines) > 1 else lines[0])}

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes.values()]
