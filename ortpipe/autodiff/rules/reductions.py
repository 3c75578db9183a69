"""Reductions. The gradient of a sum keeps the size of the sum: it broadcasts back implicitly."""

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.graph.core import query
from ortpipe.graph.core.types import is_scalar


class Reduced:
    """A reduction's axes and sizes, from attributes or inputs depending on the opset."""

    def __init__(self, op: Backward, node: Node, x: Value, listed: Value | None = None) -> None:
        self.op, self.x, self.y = op, x, node.outputs[0]
        self.keepdims = bool(node.attributes.get_int("keepdims", 1))
        self.dynamic = listed if op.constant(listed) is None else None
        self.noop = {"noop_with_empty_axes": 1} if node.attributes.get_int("noop_with_empty_axes", 0) else {}
        self.axes = query.axes(node, x.shape.rank() if x.shape is not None else None)
        self.nothing = self.axes == [] and bool(self.noop)

    def back(self, value: Value) -> Value:
        """Return a value of the output's shape with the reduced axes as 1, so that it broadcasts to the input."""
        x = self.x.shape
        if self.nothing or is_scalar(value) or (self.keepdims and self.dynamic is None):
            return value
        if self.dynamic is not None:
            wide = value if self.keepdims else self.op.Unsqueeze(self.op.full(value, self.y), self.dynamic)
            return self.op.full(wide, self.x)
        if self.axes is None or (x is not None and len(self.axes) == x.rank()):
            return value  # a scalar broadcasts
        if x is None or value.shape is None or value.shape.rank() + len(self.axes) != x.rank():
            value = self.op.full(value, self.y)  # with fewer axes than y, they would be counted from the wrong end
        wide = self.op.Unsqueeze(value, self.axes)
        if x is not None and value.shape is not None:
            dims = iter(value.shape)
            wide.shape = ir.Shape([1 if i in self.axes else next(dims) for i in range(x.rank())])
        return wide

    def sum(self, x: Value) -> Value:
        """Return Σ over the same axes, kept with size 1."""
        if self.axes is not None and not self.nothing:
            return self.op.sum(x, self.axes, keepdims=True)
        return self.op.ReduceSum(x, self.dynamic, keepdims=1, **self.noop)

    def prod(self, x: Value) -> Value:
        """Return Π over the same axes, kept with size 1."""
        if self.axes is None or self.nothing:
            return self.op.ReduceProd(x, *[v for v in [self.dynamic] if v is not None], keepdims=1, **self.noop)
        return self.op.ReduceProd(x, self.axes, keepdims=1)


def reduction(formula: Callable[[Backward, Reduced, Value, Value], Value]) -> Callable[..., Gradients]:
    """Return a reduction's rule; `formula` writes dx from (op, axes and sizes, x, dy), where dy broadcasts to x."""

    def rule(op: Backward, node: Node, dy: Value, x: Value, axes: Value | None = None) -> Gradients:
        reduced = Reduced(op, node, x, axes)
        return [formula(op, reduced, x, reduced.back(dy))]

    return rule


def extreme(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """Max, min: the values that equal the result share dy evenly, as PyTorch's `amax` and `amin`."""
    hits = op.cast(op.Equal(x, reduced.back(reduced.y)), x)
    return hits * (dy / reduced.sum(hits))


def prod(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """y = Π x: dx = dy · Π of the others; y / x where x ≠ 0; with a single zero, only that entry has a gradient."""
    is_zero = op.Equal(x, 0)
    filled = op.Where(is_zero, 1, x)
    zeros, product = reduced.sum(op.cast(is_zero, x)), reduced.prod(filled)
    none, single = (op.cast(op.Equal(zeros, count), x) for count in (0, 1))
    return dy * op.Where(is_zero, product * single, product / filled * none)


def l2(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """y = √Σ x²: dx = dy · x / y, 0 where y = 0, as PyTorch's `norm`."""
    y = reduced.back(reduced.y)
    return x * (dy / op.Where(op.Equal(y, 0), 1, y))


def log_sum_exp(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """y = log Σ exp x: dx = dy · exp(x − y), which never overflows."""
    return op.Exp(x - reduced.back(reduced.y)) * dy


RULES: Rules = {
    "ReduceL1": reduction(lambda op, reduced, x, dy: op.Sign(x) * dy),
    "ReduceL2": reduction(l2),
    "ReduceLogSum": reduction(lambda op, reduced, x, dy: dy / op.Exp(reduced.back(reduced.y))),
    "ReduceLogSumExp": reduction(log_sum_exp),
    "ReduceMax": reduction(extreme),
    "ReduceMean": reduction(lambda op, reduced, x, dy: op.averaged(dy, x, reduced.y)),
    "ReduceMin": reduction(extreme),
    "ReduceProd": reduction(prod),
    "ReduceSum": reduction(lambda op, reduced, x, dy: dy),
    "ReduceSumSquare": reduction(lambda op, reduced, x, dy: x * (dy * 2)),
}
