"""Arithmetic, sums and means, Relu and Gemm: the operators of dense networks.

For elementwise ones and sums, a gradient may be smaller than y, as long as it broadcasts to y: the gradient of a sum
keeps the size of the sum.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.doors import later
from ortpipe.graph.core import query
from ortpipe.graph.core.types import is_scalar

if TYPE_CHECKING:
    from ortpipe.autodiff.open_shapes import with_axes_again
else:
    later(__name__)


def div(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """y = a / b: da = dy / b, db = −da · y."""
    da = dy / b
    return [da, -(da * node.outputs[0])]


def gemm(op: Backward, node: Node, dy: Value, a: Value, b: Value, c: Value | None = None) -> Gradients:
    """y = α · A′B′ + β · C: dA′ = α · dy·B′ᵀ, dB′ = α · A′ᵀ·dy, dC = β · dy."""
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    trans_a, trans_b = node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)
    scale = {"alpha": alpha} if alpha != 1 else {}
    da = op.Gemm(b, dy, transA=trans_b, transB=1, **scale) if trans_a else op.Gemm(dy, b, transB=1 - trans_b, **scale)
    db = op.Gemm(dy, a, transA=1, transB=trans_a, **scale) if trans_b else op.Gemm(a, dy, transA=1 - trans_a, **scale)
    return [da, db, dy * beta if c is not None else None]


def relu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """y = max(x, 0): dx = dy · [y > 0]; 0 at 0, as PyTorch.

    In float32 [y > 0] is min(1, y · 3.4e38): one kernel, and exactly 0 or 1 unless y is subnormal. Comparing and
    casting takes three times as long.
    """
    y = node.outputs[0]
    if y.dtype == ir.DataType.FLOAT:
        return [dy * op.HardSigmoid(y, alpha=float(np.finfo(np.float32).max), beta=0.0)]
    return [dy * op.cast(op.Greater(y, 0), y)]


def same(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """Add, Sum, Identity, Cast: dxᵢ = dy."""
    return [dy] * len(x)


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
        if self.nothing or is_scalar(value) or (self.keepdims and self.dynamic is None):
            return value
        wide: Value = with_axes_again(self, value)
        return wide


def reduction(formula: Callable[[Backward, Reduced, Value, Value], Value]) -> Callable[..., Gradients]:
    """Return a reduction's rule; `formula` writes dx from (op, axes and sizes, x, dy), where dy broadcasts to x."""

    def rule(op: Backward, node: Node, dy: Value, x: Value, axes: Value | None = None) -> Gradients:
        reduced = Reduced(op, node, x, axes)
        return [formula(op, reduced, x, reduced.back(dy))]

    return rule


RULES: Rules = {
    "Add": same,
    "Cast": same,
    "CastLike": lambda op, node, dy, x, like: [dy],
    "Div": div,
    "Exp": lambda op, node, dy, x: [dy * node.outputs[0]],
    "Gemm": gemm,
    "Identity": same,
    "Log": lambda op, node, dy, x: [dy / x],
    "Mean": lambda op, node, dy, *x: [dy * (1 / len(x))] * len(x),
    "Mul": lambda op, node, dy, a, b: [dy * b, dy * a],
    "Neg": lambda op, node, dy, x: [-dy],
    "Reciprocal": lambda op, node, dy, x: [-(dy * (node.outputs[0] * node.outputs[0]))],
    "ReduceMean": reduction(lambda op, reduced, x, dy: op.averaged(dy, x, reduced.y)),
    "ReduceSum": reduction(lambda op, reduced, x, dy: dy),
    "Relu": relu,
    "Sqrt": lambda op, node, dy, x: [dy / (node.outputs[0] * 2)],
    "Sub": lambda op, node, dy, a, b: [dy, -dy],
    "Sum": same,
    "Where": lambda op, node, dy, c, a, b: [None, op.Where(c, dy, 0), op.Where(c, 0, dy)],
}
