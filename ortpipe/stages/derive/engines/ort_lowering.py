"""The training build's own operators, rewritten in standard ones: faster, portable, and present for float64."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.graph.builder import Builder
from ortpipe.graph.rewrite import Rewrite, replace

DOMAIN = "com.microsoft"


def backward(formula: Callable[..., Value]) -> Rewrite:
    """Return the rewrite of Op(dy, y) by dx, written from (op, dy, y, axis)."""

    def write(op: Builder, node: Node) -> list[Value]:
        return [formula(op, *node.inputs, op.const(np.array([node.attributes.get_int("axis", -1)])))]

    return write


def div_grad(op: Builder, node: Node) -> list[Value] | None:
    """dy / b and −dy·a / b², of operands that have the quotient's shape; where one was broadcast, it stays."""
    dy, a, b = node.inputs
    assert dy is not None and a is not None and b is not None
    if dy.shape is None or not dy.shape == a.shape == b.shape:
        return None
    slope = dy / b
    return [slope, op.Neg(slope * (a / b))][: len(node.outputs)]


def gather_elements_grad(op: Builder, node: Node) -> list[Value] | None:
    """What was gathered at each place, added up."""
    dy, shape, indices = node.inputs
    assert dy is not None
    zeros = op.Expand(op.like(0, dy), shape)
    axis = node.attributes.get_int("axis", 0)
    return [op.ScatterElements(zeros, indices, dy, axis=axis, reduction="add")]


def scale(op: Builder, node: Node) -> list[Value]:
    """x · factor, or x / factor."""
    x, factor = node.inputs
    return [(op.Div if node.attributes.get_int("scale_down", 0) else op.Mul)(x, op.cast(factor, x))]


def fused_mat_mul(op: Builder, node: Node) -> list[Value] | None:
    """alpha · a⁽ᵀ⁾ · b⁽ᵀ⁾ of matrices, as a Gemm; other ranks stay, but for float64, which has no kernel."""
    (a, b), ranks = node.inputs, [v.shape.rank() if v is not None and v.shape is not None else 0 for v in node.inputs]
    flags = {name: node.attributes.get_int(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")}
    alpha = node.attributes.get_float("alpha", 1.0)
    assert a is not None
    if flags.pop("transBatchA") or flags.pop("transBatchB"):
        return None
    if ranks == [2, 2]:
        return [op.Gemm(a, b, alpha=alpha, **flags)]
    if a.dtype != ir.DataType.DOUBLE or min(ranks) < 2:
        return None
    turned = [
        op.Transpose(v, perm=[*range(rank - 2), rank - 1, rank - 2]) if flag else v
        for v, rank, flag in zip((a, b), ranks, flags.values(), strict=True)
    ]
    return [op.MatMul(*turned) * alpha]


RULES: dict[str, Rewrite] = {
    "DivGrad": div_grad,
    "FusedMatMul": fused_mat_mul,
    "GatherElementsGrad": gather_elements_grad,
    "LogSoftmaxGrad_13": backward(lambda op, dy, y, axis: dy - op.Exp(y) * op.ReduceSum(dy, axis)),
    "ReluGrad": backward(lambda op, dy, y, axis: dy * op.cast(op.Greater(y, 0), y)),
    "Scale": scale,
    "SigmoidGrad": backward(lambda op, dy, y, axis: dy * (y * (1 - y))),
    "SoftmaxGrad_13": backward(lambda op, dy, y, axis: (dy - op.ReduceSum(dy * y, axis)) * y),
    "TanhGrad": backward(lambda op, dy, y, axis: dy * (1 - y * y)),
}


def without_yield(graph: Graph) -> None:
    """Take out the YieldOp between forward and backward: the loss's own gradient is the constant 1."""
    [node] = [n for n in graph if n.op_type == "YieldOp"]
    [loss] = node.inputs
    assert loss is not None
    loss.shape = ir.Shape([])  # lost where the builder could not infer it
    replace(node, [Builder(graph, "derive", before=node).like(1, loss)])
    graph.outputs.insert(0, loss)
