"""All parameters of a step as one vector, and gradients of known shapes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names
from ortpipe.graph.core.reach import dependents
from ortpipe.stages.train.layout import Layout, Values

VECTOR = "parameters"  # the name of the vector


@dataclass(frozen=True)
class Vector(Layout):
    """One vector, for links that read all gradients at once or compute more than sums, and for mixed types.

    For such links it is also faster than separate variables, because a node costs more than a small copy.
    """

    dtype: ir.DataType  # float16 parameters are cast from it

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Concatenate the arrays."""
        return {VECTOR: np.concatenate([arrays[name].ravel() for name in self.shapes])}

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Cut the vector up."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = np.split(variables[VECTOR], ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def write(
        self, op: Builder, names: Names, parameters: Values, gradients: Values
    ) -> dict[str, tuple[ir.Value, ir.Value]]:
        """Cut the vector up in front of the step, and concatenate the gradients after it."""
        front = Builder(op.graph, "update", before=op.graph[0], names=names)
        sizes, line = [math.prod(shape) for shape in self.shapes.values()], op.const(np.array([-1], np.int64))
        vector, lines = op.input(VECTOR, self.dtype, [sum(sizes)]), list[ir.Value]()
        for part, (name, shape) in zip(split(front, vector, sizes), self.shapes.items(), strict=True):
            parameter, gradient = parameters[name], gradients[name]
            if len(shape) != 1:
                part = shaped(front.Reshape(part, front.const(np.array(shape, np.int64))), shape)
                gradient = shaped(op.Reshape(gradient, line), [math.prod(shape)])
            if parameter.dtype != self.dtype:
                part, gradient = front.cast(part, parameter), op.cast(gradient, vector)
            ir.convenience.replace_all_uses_with(parameter, part)
            lines.append(gradient)
        return {VECTOR: (vector, concat(op, lines, [sum(sizes)]))}


def concat(op: Builder, parts: Sequence[ir.Value], shape: Sequence[int]) -> ir.Value:
    """Return the parts as one value of this shape."""
    return shaped(op.Concat(*parts, axis=0), shape) if len(parts) > 1 else parts[0]


def split(front: Builder, value: ir.Value, sizes: Sequence[int]) -> Sequence[ir.Value]:
    """Return parts of these sizes along the first axis."""
    if len(sizes) == 1:
        return [value]
    assert value.shape is not None
    parts = front.Split(value, front.const(np.array(sizes, np.int64)), outputs=len(sizes), axis=0)
    return [shaped(part, [size, *value.shape[1:]]) for part, size in zip(parts, sizes, strict=True)]


def shaped(value: ir.Value, shape: Sequence[int | ir.SymbolicDim]) -> ir.Value:
    """Set the value's shape and return the value: a step with known shapes needs no shape inference."""
    value.shape = ir.Shape(shape)
    return value


def with_known_shapes(op: Builder, gradients: Values, parameters: Values) -> dict[str, ir.Value]:
    """Return gradients by parameter, reshaped where onnxruntime infers no shape: behind a Split by computed sizes.

    A Scan rejects states of unknown shape, even if its body declares one.
    """
    unranked = dependents(op.graph, (), _splits_by_computed_sizes)
    shapes = {name: np.array(parameters[name].shape, np.int64) for name in gradients}
    return {n: op.Reshape(g, op.const(shapes[n])) if g in unranked else g for n, g in gradients.items()}


def _splits_by_computed_sizes(node: ir.Node) -> bool:
    return node.op_type == "Split" and len(node.inputs) > 1 and query.constant(node.inputs[1]) is None
