"""Small parameters with equal rows as one array: a step with thousands of parameters needs far fewer inputs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core.builder import Builder, Names
from ortpipe.stages.train.layout import Layout, Shapes, Values
from ortpipe.stages.train.vector import concat, split


@dataclass(frozen=True)
class Stacks(Layout):
    """A layout of stacks: parameters of equal type and row size, concatenated along the first axis."""

    members: Mapping[str, Sequence[str]]  # the parameters of each stack, in order
    inner: Layout  # of the stacks

    def as_vector(self, dtype: ir.DataType) -> Layout:
        """Return the layout that carries all stacks as one vector."""
        return replace(self, inner=self.inner.as_vector(dtype))

    def pack(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Concatenate each stack's arrays."""
        stacks = self._stacks()
        stacked = {stack: np.concatenate([arrays[name] for name in names]) for stack, names in stacks.items()}
        return self.inner.pack({**arrays, **stacked})

    def unpack(self, variables: Arrays) -> dict[str, np.ndarray]:
        """Cut the stacks up."""
        arrays = self.inner.unpack(variables)
        for stack, names in self._stacks().items():
            ends = np.cumsum([self.shapes[name][0] for name in names])
            arrays |= zip(names, np.split(arrays.pop(stack), ends[:-1]), strict=True)
        return arrays

    def write(
        self, op: Builder, names: Names, parameters: Values, gradients: Values
    ) -> dict[str, tuple[ir.Value, ir.Value]]:
        """Cut the stacks up in front of the step, and concatenate their gradients after it."""
        front = Builder(op.graph, "update", before=op.graph[0], names=names)
        stacked, joined = dict(parameters), dict(gradients)
        for stack, members in self._stacks().items():
            dtype, shape = parameters[members[0]].dtype, self.inner.shapes[stack]
            assert dtype is not None
            stacked[stack] = op.input(stack, dtype, shape)
            parts = split(front, stacked[stack], [self.shapes[name][0] for name in members])
            for name, part in zip(members, parts, strict=True):
                ir.convenience.replace_all_uses_with(parameters[name], part)
            joined[stack] = concat(op, [gradients[name] for name in members], shape)
        return self.inner.write(op, names, stacked, joined)

    def _stacks(self) -> dict[str, Sequence[str]]:
        return {stack: names for stack, names in self.members.items() if len(names) > 1}


def stacked(layout: Layout, arrays: Arrays) -> Layout:
    """Stack small parameters of equal type and row size if there are many; otherwise return the layout.

    onnxruntime 1.19.2 searches all inputs of a graph for each operand of each node.
    """
    if len(arrays) < THRESHOLDS.stacked_parameters:
        return layout
    alike, high = defaultdict[object, list[str]](list), THRESHOLDS.stack_height
    for name, array in arrays.items():
        stackable = array.size <= THRESHOLDS.stacked_elements and array.ndim
        alike[(array.dtype, array.shape[1:]) if stackable else name].append(name)
    groups = [names[start : start + high] for names in alike.values() for start in range(0, len(names), high)]
    return stacks_of({name: array.shape for name, array in arrays.items()}, groups)


def stacks_of(shapes: Shapes, groups: Sequence[Sequence[str]]) -> Stacks:
    """Return the layout with these groups of parameters as stacks."""
    fresh = Names(shapes)
    members = {names[0] if len(names) == 1 else fresh.fresh("parameters/stack"): names for names in groups}
    rows = {stack: sum(shapes[name][0] for name in names) for stack, names in members.items() if len(names) > 1}
    whole = {s: (rows[s], *shapes[ns[0]][1:]) if s in rows else shapes[s] for s, ns in members.items()}
    return Stacks({name: shapes[name] for names in groups for name in names}, members, Layout(whole))
