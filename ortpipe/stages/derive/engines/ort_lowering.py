"""The training build's own operators, rewritten in standard ones: faster, portable, and present for float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortpipe.graph.builder import Builder

TRAINING = "com.microsoft"


def relu_grad(op: Builder, node: ir.Node, dy: ir.Value, y: ir.Value) -> ir.Value:
    """dy · [y > 0]."""
    return op.Mul(dy, op.cast(op.Greater(y, op.like(0, y)), y))


def sigmoid_grad(op: Builder, node: ir.Node, dy: ir.Value, y: ir.Value) -> ir.Value:
    """dy · y · (1 − y)."""
    return op.Mul(dy, op.Mul(y, op.Sub(op.like(1, y), y)))


def tanh_grad(op: Builder, node: ir.Node, dy: ir.Value, y: ir.Value) -> ir.Value:
    """dy · (1 − y²)."""
    return op.Mul(dy, op.Sub(op.like(1, y), op.Mul(y, y)))


def softmax_grad(op: Builder, node: ir.Node, dy: ir.Value, y: ir.Value) -> ir.Value:
    """(dy − Σ dy·y) · y."""
    return op.Mul(op.Sub(dy, op.ReduceSum(op.Mul(dy, y), _axis(op, node))), y)


def log_softmax_grad(op: Builder, node: ir.Node, dy: ir.Value, y: ir.Value) -> ir.Value:
    """dy − exp(y) · Σ dy."""
    return op.Sub(dy, op.Mul(op.Exp(y), op.ReduceSum(dy, _axis(op, node))))


def scale(op: Builder, node: ir.Node, x: ir.Value, factor: ir.Value) -> ir.Value:
    """x · factor, or x / factor."""
    down = "scale_down" in node.attributes and node.attributes["scale_down"].as_int() == 1
    return (op.Div if down else op.Mul)(x, op.cast(factor, x))


def fused_mat_mul(op: Builder, node: ir.Node, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """alpha · a⁽ᵀ⁾ · b⁽ᵀ⁾ of matrices, as a Gemm; other ranks stay, but for float64, which has no kernel."""
    ranks = {v.shape.rank() if v.shape is not None else None for v in (a, b)}
    given = {n: node.attributes[n].value for n in ("alpha", "transA", "transB") if n in node.attributes}
    if any(n in node.attributes and node.attributes[n].as_int() for n in ("transBatchA", "transBatchB")):
        return None
    if ranks == {2}:
        return op.Gemm(a, b, **given)
    if a.dtype != ir.DataType.DOUBLE or any(rank is None or rank < 2 for rank in ranks):
        return None
    product = op.MatMul(_turned(op, a, given.get("transA", 0)), _turned(op, b, given.get("transB", 0)))
    return op.Mul(product, op.like(given.get("alpha", 1.0), a))


def _turned(op: Builder, x: ir.Value, turn: int) -> ir.Value:
    """Return x with its last two axes swapped, or as it is."""
    assert x.shape is not None
    *first, last, end = range(x.shape.rank())
    return op.Transpose(x, perm=[*first, end, last]) if turn else x


RULES: dict[str, Callable[..., ir.Value | None]] = {
    "FusedMatMul": fused_mat_mul,
    "LogSoftmaxGrad_13": log_softmax_grad,
    "ReluGrad": relu_grad,
    "Scale": scale,
    "SigmoidGrad": sigmoid_grad,
    "SoftmaxGrad_13": softmax_grad,
    "TanhGrad": tanh_grad,
}


def without_yield(graph: ir.Graph) -> None:
    """Take out the YieldOp between forward and backward: the loss's own gradient is the constant 1."""
    [node] = [n for n in graph if n.op_type == "YieldOp"]
    [loss], [gradient] = node.inputs, node.outputs
    assert loss is not None
    loss.shape = ir.Shape([])  # lost where the builder could not infer it
    gradient.replace_all_uses_with(Builder(graph, "derive", before=node).like(1, loss))
    graph.remove(node, safe=True)
    graph.outputs.insert(0, loss)


def lower(graph: ir.Graph) -> None:
    """Rewrite in place every node that has a rule; names of values stay."""
    for node in list(graph):
        if node.domain != TRAINING or node.op_type not in RULES:
            continue
        made = RULES[node.op_type](Builder(graph, f"derive/{node.op_type}", before=node), node, *node.inputs)
        if made is None:
            continue
        [old] = node.outputs
        name, made.type, made.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(made, replace_graph_outputs=True)
        old.name, made.name = f"{name}/replaced", name
        graph.remove(node, safe=True)


def _axis(op: Builder, node: ir.Node) -> ir.Value:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    return op.const(np.array([axis]))
