"""How steps carry parameters and arrays of their shapes: individually, in stacks, or as one vector."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.graph.core.builder import Builder, Names

VECTOR = "parameters"  # the name of the flat vector, and the first part of stacks' names
Values = Mapping[str, ir.Value]
Stack = Mapping[str, tuple[int, ...]]  # parameters' shapes by name, concatenated along the first axis


@dataclass(frozen=True)
class Layout:
    """The variables of a step: one per stack (often a single parameter), or one vector of all stacks.

    Products of the backward pass can accumulate directly into separate variables. If that is not possible, a vector is
    faster, because a node costs more than a small copy.
    """

    stacks: Sequence[Stack]
    vector: ir.DataType | None = None  # the vector's type, if it is used; float16 parameters are cast from it

    @classmethod
    def of(cls, arrays: Arrays, vector: ir.DataType | None = None, groups: Iterable[Sequence[str]] = ()) -> Self:
        """Return a layout with each parameter on its own, or with the groups (equal types and row sizes) as stacks."""
        groups = groups or [[name] for name in arrays]
        return cls([{name: arrays[name].shape for name in names} for names in groups], vector)

    @cached_property
    def shapes(self) -> Stack:
        """The shapes of all parameters, in order."""
        return {name: shape for stack in self.stacks for name, shape in stack.items()}

    @cached_property
    def _variables(self) -> dict[str, Stack]:
        if self.vector is not None:
            return {VECTOR: self.shapes}
        names = Names(self.shapes)
        return {next(iter(s)) if len(s) == 1 else names.fresh(f"{VECTOR}/stack"): s for s in self.stacks}

    def _is_parameter(self, shapes: Stack) -> bool:
        """Return whether the variable is a single parameter in its own shape."""
        return self.vector is None and len(shapes) == 1

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Convert parameters' arrays to variables'."""
        variables = {}
        for variable, shapes in self._variables.items():
            if self._is_parameter(shapes):
                variables[variable] = arrays[variable]
                continue
            parts = [arrays[name] for name in shapes]
            variables[variable] = np.concatenate(parts if self.vector is None else [part.ravel() for part in parts])
        return variables

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Convert variables' arrays to parameters'."""
        arrays = {}
        for variable, shapes in self._variables.items():
            if self._is_parameter(shapes):
                arrays[variable] = variables[variable]
                continue
            array, first = variables[variable], 0
            for name, shape in shapes.items():
                last = first + (math.prod(shape) if self.vector is not None else shape[0])
                arrays[name], first = array[first:last].reshape(shape), last
        return arrays

    def write(
        self, front: Builder, op: Builder, parameters: Values, gradients: Values
    ) -> dict[str, tuple[ir.Value, ir.Value]]:
        """Return each variable with its gradient: split variables before the step, concatenate gradients after it."""
        if self.vector is not None:
            return {VECTOR: self._write_vector(self.vector, front, op, parameters, gradients)}
        written = {}
        for variable, stack in self._variables.items():
            if self._is_parameter(stack):
                written[variable] = parameters[variable], gradients[variable]
                continue
            dtype = parameters[next(iter(stack))].dtype
            assert dtype is not None
            stacked = op.input(variable, dtype, _shape(stack))
            _cut_up(front, stacked, stack, parameters)
            written[variable] = stacked, _join(op, stack, gradients)
        return written

    def _write_vector(
        self, dtype: ir.DataType, front: Builder, op: Builder, parameters: Values, gradients: Values
    ) -> tuple[ir.Value, ir.Value]:
        sizes, line = [math.prod(_shape(stack)) for stack in self.stacks], op.const(np.array([-1], np.int64))
        vector, lines = op.input(VECTOR, dtype, [sum(sizes)]), list[ir.Value]()
        for part, stack in zip(_split(front, vector, sizes), self.stacks, strict=True):
            shape, like, gradient = _shape(stack), parameters[next(iter(stack))], _join(op, stack, gradients)
            if len(shape) != 1:
                part = _shaped(front.Reshape(part, front.const(np.array(shape, np.int64))), shape)
                gradient = _shaped(op.Reshape(gradient, line), [math.prod(shape)])
            if like.dtype != dtype:
                part, gradient = front.cast(part, like), op.cast(gradient, vector)
            _cut_up(front, part, stack, parameters)
            lines.append(gradient)
        return vector, _concat(op, lines, [sum(sizes)])


def _shape(stack: Stack) -> tuple[int, ...]:
    [*shapes] = stack.values()
    return shapes[0] if len(shapes) == 1 else (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _cut_up(front: Builder, stacked: ir.Value, stack: Stack, parameters: Values) -> None:
    """Replace the parameters in a step by slices of a stack."""
    parts = _split(front, stacked, [shape[0] for shape in stack.values()]) if len(stack) > 1 else [stacked]
    for name, part in zip(stack, parts, strict=True):
        ir.convenience.replace_all_uses_with(parameters[name], part)


def _join(op: Builder, stack: Stack, gradients: Values) -> ir.Value:
    """Return the stack's gradient."""
    return _concat(op, [gradients[name] for name in stack], _shape(stack))


def _concat(op: Builder, parts: Sequence[ir.Value], shape: Sequence[int]) -> ir.Value:
    return _shaped(op.Concat(*parts, axis=0), shape) if len(parts) > 1 else parts[0]


def _split(front: Builder, value: ir.Value, sizes: Sequence[int]) -> Sequence[ir.Value]:
    if len(sizes) == 1:
        return [value]
    assert value.shape is not None
    parts = front.Split(value, front.const(np.array(sizes, np.int64)), outputs=len(sizes), axis=0)
    return [_shaped(part, [size, *value.shape[1:]]) for part, size in zip(parts, sizes, strict=True)]


def _shaped(value: ir.Value, shape: Sequence[int | ir.SymbolicDim]) -> ir.Value:
    """Set the value's shape and return the value: a step with known shapes needs no shape inference."""
    value.shape = ir.Shape(shape)
    return value
