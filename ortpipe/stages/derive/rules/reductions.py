"""Reductions. The gradient of a sum stays as small as the sum: it broadcasts back by itself."""

from __future__ import annotations

import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients
from ortpipe.stages.derive.rules.activations import integer


class Reduced:
    """A reduction's axes and sizes, whatever the opset says them by."""

    def __init__(self, op: Backward, node: ir.Node) -> None:
        x = node.inputs[0]
        assert x is not None
        self.op, self.x, self.y = op, x, node.outputs[0]
        self.keepdims = bool(integer(node, "keepdims", 1))
        listed = node.inputs[1] if len(node.inputs) > 1 else None
        tensor = op.constant(listed)
        self.dynamic = listed if listed is not None and tensor is None else None
        self.noop = {"noop_with_empty_axes": 1} if integer(node, "noop_with_empty_axes", 0) else {}
        axes: list[int] | None = None
        if "axes" in node.attributes:
            axes = list(node.attributes["axes"].as_ints())
        elif tensor is not None and tensor.size:
            axes = [int(a) for a in tensor.numpy().ravel()]
        rank = x.shape.rank() if x.shape is not None else None
        self.nothing = not axes and self.dynamic is None and bool(self.noop)
        if axes is None and rank is not None and self.dynamic is None and not self.nothing:
            axes = list(range(rank))
        self.axes = sorted(a % rank for a in axes) if axes is not None and rank is not None else axes

    def back(self, value: ir.Value) -> ir.Value:
        """Return a value of the output's shape with the reduced axes as 1, so that it broadcasts to the input."""
        x = self.x.shape
        if self.nothing or (self.keepdims and self.dynamic is None):
            return value
        if self.dynamic is not None:
            wide = value if self.keepdims else self.op.Unsqueeze(self.op.full(value, self.y), self.dynamic)
            wide.type, wide.shape = value.type, wide.shape if self.keepdims else None
            return self.op.full(wide, self.x)
        if self.axes is None or (x is not None and len(self.axes) == x.rank()):
            return value  # a scalar broadcasts as it is
        if value.shape is not None and value.shape.rank() == 0:
            return value
        if x is None or value.shape is None or value.shape.rank() + len(self.axes) != x.rank():
            value = self.op.full(value, self.y)  # fewer axes than y has: they would be counted from the wrong end
        made = self.op.Unsqueeze(value, self.op.ints(self.axes))
        made.type = value.type
        if x is not None and value.shape is not None:
            dims = iter(value.shape)
            made.shape = ir.Shape([1 if i in self.axes else next(dims) for i in range(x.rank())])
        return made

    def sum(self, x: ir.Value) -> ir.Value:
        """Return Σ over the same axes, which stay as 1."""
        if self.axes is not None and not self.nothing:
            return self.op.sum(x, self.axes, keepdims=True)
        return self.op.ReduceSum(x, self.dynamic, keepdims=1, **self.noop)

    def prod(self, x: ir.Value) -> ir.Value:
        """Return Π over the same axes, which stay as 1."""
        if self.axes is None or self.nothing:
            return self.op.ReduceProd(x, *[v for v in [self.dynamic] if v is not None], keepdims=1, **self.noop)
        if self.op.opset < 18:
            return self.op.ReduceProd(x, axes=self.axes, keepdims=1)
        return self.op.ReduceProd(x, self.op.ints(self.axes), keepdims=1)


def reduce_sum(op: Backward, node: ir.Node, dy: ir.Value, *_: ir.Value | None) -> Gradients:
    """y = Σ x: dx = dy."""
    return [Reduced(op, node).back(dy)]


def reduce_mean(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = Σ x / n: dx = dy / n."""
    reduced = Reduced(op, node)
    return [op.averaged(reduced.back(dy), reduced.x, reduced.y)]


def reduce_extreme(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Max, min: the values that equal the result share dy evenly, as PyTorch's `amax` and `amin`."""
    reduced = Reduced(op, node)
    hits = op.cast(op.Equal(reduced.x, reduced.back(node.outputs[0])), reduced.x)
    return [op.Mul(hits, op.Div(reduced.back(dy), reduced.sum(hits)))]


def reduce_prod(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = Π x: dx = dy · Π of the others; y / x where x ≠ 0, and with one zero only that one moves y."""
    reduced = Reduced(op, node)
    x, zero, one = reduced.x, op.like(0, reduced.x), op.like(1, reduced.x)
    is_zero = op.Equal(x, zero)
    filled = op.Where(is_zero, one, x)
    zeros, product = reduced.sum(op.cast(is_zero, x)), reduced.prod(filled)
    none = op.cast(op.Equal(zeros, zero), x)
    single = op.cast(op.Equal(zeros, one), x)
    others = op.Where(is_zero, op.Mul(product, single), op.Mul(op.Div(product, filled), none))
    return [op.Mul(reduced.back(dy), others)]


def reduce_l1(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = Σ |x|: dx = dy · sign x."""
    reduced = Reduced(op, node)
    return [op.Mul(op.Sign(reduced.x), reduced.back(dy))]


def reduce_l2(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = √Σ x²: dx = dy · x / y, 0 where y = 0, as PyTorch's `norm`."""
    reduced = Reduced(op, node)
    y = reduced.back(node.outputs[0])
    safe = op.Where(op.Equal(y, op.like(0, y)), op.like(1, y), y)
    return [op.Mul(reduced.x, op.Div(reduced.back(dy), safe))]


def reduce_log_sum(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = log Σ x: dx = dy / exp(y)."""
    reduced = Reduced(op, node)
    return [op.Div(reduced.back(dy), op.Exp(reduced.back(node.outputs[0])))]


def reduce_log_sum_exp(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = log Σ exp x: dx = dy · exp(x − y), which never overflows."""
    reduced = Reduced(op, node)
    return [op.Mul(op.Exp(op.Sub(reduced.x, reduced.back(node.outputs[0]))), reduced.back(dy))]


def reduce_sum_square(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = Σ x²: dx = dy · 2x."""
    reduced = Reduced(op, node)
    return [op.Mul(reduced.x, op.Mul(reduced.back(dy), op.like(2, reduced.x)))]


RULES = {
    "ReduceL1": reduce_l1,
    "ReduceL2": reduce_l2,
    "ReduceLogSum": reduce_log_sum,
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": reduce_extreme,
    "ReduceMean": reduce_mean,
    "ReduceMin": reduce_extreme,
    "ReduceProd": reduce_prod,
    "ReduceSum": reduce_sum,
    "ReduceSumSquare": reduce_sum_square,
}
