"""How parameters, and what has their shapes, are carried from step to step: each by itself, or as one flat vector."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.graph.builder import Builder

Arrays = Mapping[str, np.ndarray]
Values = Mapping[str, ir.Value]
Variables = dict[str, tuple[ir.Value, ir.Value]]  # each with its gradient


@dataclass(frozen=True)
class PerParameter:
    """Each parameter is a variable: products of the backward pass can then be accumulated onto it.

    Attributes:
        shapes: of the parameters, by name.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return the variables' arrays of the parameters'."""
        return {name: arrays[name] for name in self.shapes}

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Return the parameters' arrays of the variables'."""
        return dict(variables)

    def write(self, front: Builder, op: Builder, parameters: Values, gradients: Values) -> Variables:
        """Return each variable and its gradient, written in front of a step and behind its backward pass."""
        return {name: (value, gradients[name]) for name, value in parameters.items()}


@dataclass(frozen=True)
class Flat:
    """All parameters, one behind the other, are one variable: a node costs more than a small copy.

    Attributes:
        shapes: of the parameters, by name.
        dtype: of the vector; parameters of halves are cast from it, and their gradients to it.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtype: ir.DataType = ir.DataType.FLOAT
    NAME = "parameters"

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return one vector."""
        return {self.NAME: np.concatenate([arrays[name].ravel() for name in self.shapes])}

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Cut the vector up."""
        parts = zip(self.shapes.items(), np.split(variables[self.NAME], np.cumsum(self._sizes)[:-1]), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def write(self, front: Builder, op: Builder, parameters: Values, gradients: Values) -> Variables:
        """Cut the vector up in front, join the gradients behind."""
        vector = op.input(self.NAME, self.dtype, [sum(self._sizes)])
        sizes = front.const(np.array(self._sizes, np.int64))
        parts = front.Split(vector, sizes, outputs=len(self.shapes), axis=0) if len(self.shapes) > 1 else [vector]
        for part, parameter, shape in zip(parts, parameters.values(), self.shapes.values(), strict=True):
            shaped = front.Reshape(part, front.const(np.array(shape, np.int64))) if len(shape) != 1 else part
            shaped = front.cast(shaped, parameter) if parameter.dtype != self.dtype else shaped
            shaped.type, shaped.shape = parameter.type, parameter.shape
            ir.convenience.replace_all_uses_with(parameter, shaped)
        line = op.const(np.array([-1], np.int64))
        lines = [
            g if len(shape) == 1 else op.Reshape(g, line)
            for g, shape in zip(gradients.values(), self.shapes.values(), strict=True)
        ]
        halves = [parameter.dtype != self.dtype for parameter in parameters.values()]
        lines = [op.cast(g, vector) if half else g for g, half in zip(lines, halves, strict=True)]
        joined = op.Concat(*lines, axis=0) if len(lines) > 1 else lines[0]
        return {self.NAME: (vector, joined)}

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes.values()]


Layout = PerParameter | Flat
