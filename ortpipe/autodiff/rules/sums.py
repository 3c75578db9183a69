"""Sums and means. The gradient of a sum keeps the size of the sum: it broadcasts back implicitly."""

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


def reduction(formula: Callable[[Backward, Reduced, Value, Value], Value]) -> Callable[..., Gradients]:
    """Return a reduction's rule; `formula` writes dx from (op, axes and sizes, x, dy), where dy broadcasts to x."""

    def rule(op: Backward, node: Node, dy: Value, x: Value, axes: Value | None = None) -> Gradients:
        reduced = Reduced(op, node, x, axes)
        return [formula(op, reduced, x, reduced.back(dy))]

    return rule


RULES: Rules = {
    "ReduceMean": reduction(lambda op, reduced, x, dy: op.averaged(dy, x, reduced.y)),
    "ReduceSum": reduction(lambda op, reduced, x, dy: dy),
}
