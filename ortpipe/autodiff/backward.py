"""The graph builder that gradient rules use."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.doors import later, optional
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names
from ortpipe.graph.core.query import HALVES
from ortpipe.graph.core.types import equal, same

if TYPE_CHECKING:  # for shapes that are known at run time only, and ranks that change
    from ortpipe.autodiff.open_shapes import reshaped_like, unbroadcast_dynamic
else:
    later(__name__)

Gradients = Sequence[Value | None]
Rules = Mapping[str, Callable[..., Gradients]]
SIMPLIFIER = optional("ortpipe.autodiff.simplify", "Simplifier")  # the same values for less work; not in the spine


class Backward(Builder):
    """A builder for gradients; subgraphs use the same table of rules as the walk.

    A gradient may have a smaller shape that broadcasts to its value's shape: the gradient of a sum stays a scalar.
    A rule that needs the full shape calls `full`.
    """

    def __init__(self, graph: Graph, rules: Rules, prefix: str = "grad", names: Names | None = None) -> None:
        super().__init__(graph, prefix, names=names)
        self.rules = rules
        self.forward = dict.fromkeys(graph)  # the nodes of the forward graph, in order
        self.active: set[Value] = set()  # the values that depend on a target; filled when the walk begins
        self._simplifier = SIMPLIFIER(self) if SIMPLIFIER is not None else None

    def _add(self, *parts: Any) -> Any:
        return super()._add(*parts) if self._simplifier is None else self._simplifier.add(super()._add, *parts)

    def inside(self, graph: Graph) -> Backward:
        """Return a builder for a subgraph; its names do not collide with those of the outer graph."""
        graph.opset_imports.update(self.graph.opset_imports)
        return Backward(graph, self.rules, self._prefix, self._names)

    def total(self, received: Sequence[Value], like: Value) -> Value:
        """Return the sum of the gradients of one value; identical ones become a product."""
        terms = [
            g if n == 1 else self.Mul(g, self.like(n, like if like.dtype in query.FLOATS else g))
            for g, n in Counter(received).items()
        ]
        return functools.reduce(self.Add, terms)

    def unbroadcast(self, gradient: Value, x: Value, y: Value | None = None) -> Value:
        """Return the gradient of `x` from that of the output: its sum over the axes along which `x` was broadcast.

        The result broadcasts to x's shape. With the output `y`, the gradient may be smaller than y: if an axis has
        size 1 in the gradient and in x, and n in y, the n gradients along it are equal, and their sum is n times one.
        """
        gradient.type = gradient.type or x.type
        if gradient.shape is None and y is None:
            gradient.shape = x.shape
        if gradient.shape is None or x.shape is None or (y is not None and y.shape is None):
            return unbroadcast_dynamic(self, gradient, x, y)
        axes = broadcast_axes(gradient.shape, x.shape, y.shape if y is not None else None)
        if axes is None:
            return unbroadcast_dynamic(self, gradient, x, y)
        summed, repeated = axes
        extra = gradient.shape.rank() - x.shape.rank()
        for axis in repeated:
            assert y is not None
            gradient = self.Mul(gradient, self.cast(self.dim(y, axis), gradient))
        if not summed or summed == list(range(extra)):
            gradient = self.sum(gradient, summed) if summed else gradient
            return self.reshape_like(gradient, x) if extra > len(summed) else gradient
        total = self.sum(gradient, summed, keepdims=True)
        return self.reshape_like(total, x) if extra > 0 else total

    def constant(self, value: Value | None) -> ir.TensorProtocol | None:
        """Return a value's constant; None if it is an input (callers may set it) or trained."""
        if value is None or value.is_graph_input() or value in self.active:
            return None
        return query.tensor(value)

    def dim(self, x: Value, axis: int) -> Value:
        """Return one dimension of x as an int64 scalar: a constant if it is static."""
        static = x.shape[axis] if x.shape is not None else None
        if isinstance(static, int):
            return self.const(np.int64(static))
        size = self.Gather(self.Shape(x), self.const(np.int64(axis)), axis=0)
        size.shape = ir.Shape([])
        return size

    def full(self, gradient: Value, y: Value) -> Value:
        """Return a gradient expanded to its value's full shape."""
        if gradient.shape is not None and y.shape is not None and same(gradient.shape, y.shape):
            return gradient
        wide = self.Expand(gradient, self.shape(y))
        wide.type, wide.shape = y.type if y.dtype in query.FLOATS else gradient.type, y.shape
        return wide

    def sum(self, x: Value, axes: Sequence[int], *, keepdims: bool = False) -> Value:
        """Return Σ over axes."""
        fast = self._simplifier.sum_of_rows(x, keepdims) if self._simplifier and list(axes) == [0] else None
        total, shape = self.ReduceSum(x, axes, keepdims=int(keepdims)) if fast is None else fast, x.shape
        if shape is not None:
            dims = enumerate(shape)
            total.shape = ir.Shape([1 if i in axes else d for i, d in dims if keepdims or i not in axes])
        return total

    def averaged(self, value: Value, x: Value, y: Value) -> Value:
        """Return value / n, where each element of y combines n of x; n itself may exceed the range of float16."""
        half = x.dtype in HALVES
        joined = quotient(x.shape, y.shape)
        if joined is not None:
            return self.Mul(value, self.like(1 / max(joined, 1), x)) if half else self.Div(value, self.like(joined, x))
        wide = ir.TensorType(ir.DataType.FLOAT) if half else x.type
        total, y_size = (self.cast(self.Size(v), Value(type=wide)) for v in (x, y))
        if half:
            return self.Mul(value, self.cast(self.Div(y_size, total), x))
        scalar = y.shape is not None and y.shape.rank() == 0
        return self.Div(value, total if scalar else self.Div(total, y_size))

    def output(self, node: Node, index: int, name: str, like: Value) -> Value:
        """Return an output of a forward node, with the type and shape of `like`; add the output if it is missing."""
        if len(node.outputs) <= index:
            node.resize_outputs(index + 1)
        y = node.outputs[index]
        if not y.name:
            self.rename(y, f"{node.outputs[0].name}/{name}")
        y.type, y.shape = like.type, like.shape
        return y

    def axis(self, node: Node, x: Value, default: int = -1) -> int:
        """Return the attribute `axis`, counted from the front if the rank is known."""
        axis = node.attributes.get_int("axis", default)
        return axis % x.shape.rank() if x.shape is not None else axis

    def vector(self, x: Value) -> Value:
        """Return x as a vector."""
        return x if x.shape is not None and x.shape.rank() == 1 else self.Reshape(x, [-1])

    def shape(self, x: Value) -> Value:
        """Return a value's shape as a tensor: a constant if it is static."""
        if x.shape is not None and all(isinstance(d, int) for d in x.shape):
            return self.const(np.array(x.shape.numpy(), np.int64))
        return self.Shape(x)

    def reshape(self, x: Value, to: Sequence[int], shape: Sequence[Any] | None = None) -> Value:
        """Return x reshaped to the constant shape `to` (which may contain one −1)."""
        result = self.Reshape(x, to)
        result.shape = ir.Shape(list(shape or to)) if shape is not None or -1 not in to else None
        return result

    def reshape_like(self, gradient: Value, x: Value) -> Value:
        """Return a gradient with x's shape; one unknown dimension is left to the runtime."""
        return reshaped_like(self, gradient, x)

    def zeros(self, x: Value) -> Value:
        """Return zeros of a value's shape and type."""
        return self.full(self.like(0, x), x)


def broadcast_axes(gradient: ir.Shape, x: ir.Shape, y: ir.Shape | None) -> tuple[list[int], list[int]] | None:
    """Return the axes of the gradient, and of `y`, along which `x` was broadcast; None if symbolic sizes hide some.

    The gradient is summed over the first ones. It has size 1 along the second ones, and is multiplied by their size.
    """
    summed, repeated = [], []
    ranks = [s.rank() if s is not None else 0 for s in (gradient, x, y)]
    for back in range(1, max(ranks) + 1):
        h, w, v = (s[-back] if s is not None and back <= s.rank() else 1 for s in (gradient, x, y))
        if y is None:
            v = w if h == 1 else h
        if v == 1 or equal(w, v) or (isinstance(w, int) and w != 1):
            continue
        if w != 1 or not (isinstance(h, int) or equal(h, v) or y is None):
            return None
        if h == 1:
            repeated.append(ranks[2] - back)
        else:
            summed.append(ranks[0] - back)
    return sorted(summed), sorted(repeated)


def quotient(x: ir.Shape | None, y: ir.Shape | None) -> int | None:
    """Return |x| / |y| if all dimensions that differ are static."""
    if x is None or y is None:
        return None
    unshared = list(x)
    for d in y:
        if d == 1 and 1 not in unshared:
            continue
        if d not in unshared or not (isinstance(d, int) or d.value is not None):
            return None
        unshared.remove(d)
    return math.prod(d for d in unshared if isinstance(d, int)) if all(isinstance(d, int) for d in unshared) else None
