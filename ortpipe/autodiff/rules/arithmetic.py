"""Arithmetic, Relu and Gemm, the operators of dense networks.

For elementwise ones, a gradient may be smaller than y, as long as it broadcasts to y.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules


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
    "Relu": relu,
    "Sqrt": lambda op, node, dy, x: [dy / (node.outputs[0] * 2)],
    "Sub": lambda op, node, dy, a, b: [dy, -dy],
    "Sum": same,
    "Where": lambda op, node, dy, c, a, b: [None, op.Where(c, dy, 0), op.Where(c, 0, dy)],
}
