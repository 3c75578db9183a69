"""Matrix products."""

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules, ranked
from ortpipe.graph.core.builder import Builder


def gemm(op: Backward, node: Node, dy: Value, a: Value, b: Value, c: Value | None = None) -> Gradients:
    """y = α · A′B′ + β · C: dA′ = α · dy·B′ᵀ, dB′ = α · A′ᵀ·dy, dC = β · dy."""
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    trans_a, trans_b = node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)
    scale = {"alpha": alpha} if alpha != 1 else {}
    da = op.Gemm(b, dy, transA=trans_b, transB=1, **scale) if trans_a else op.Gemm(dy, b, transB=1 - trans_b, **scale)
    db = op.Gemm(dy, a, transA=1, transB=trans_a, **scale) if trans_b else op.Gemm(a, dy, transA=1 - trans_a, **scale)
    return [da, db, dy * beta if c is not None else None]


def mat_mul(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """y = A·B: dA = dy·Bᵀ, dB = Aᵀ·dy, summed over broadcast batch axes."""
    rank_a, rank_b = ranked(a).rank(), ranked(b).rank()
    if rank_a == 2 and rank_b == 2:
        return [op.Gemm(dy, b, transB=1), op.Gemm(a, dy, transA=1)]
    if rank_a == 1 and rank_b == 1:
        return [dy * b, dy * a]
    if rank_b == 2 and rank_a > 2 and _width(a) and _width(dy):  # all rows times one matrix: two plain products
        rows, d_rows = op.reshape(a, [-1, _width(a)]), op.reshape(dy, [-1, _width(dy)])
        return [op.MatMul(dy, transposed(op, b, 2)), op.Gemm(rows, d_rows, transA=1)]
    wide_a, dy = (op.Unsqueeze(a, [0]), op.Unsqueeze(dy, [-2])) if rank_a == 1 else (a, dy)
    wide_b, dy = (op.Unsqueeze(b, [1]), op.Unsqueeze(dy, [-1])) if rank_b == 1 else (b, dy)
    da = op.MatMul(dy, transposed(op, wide_b, max(rank_b, 2)))
    db = op.MatMul(transposed(op, wide_a, max(rank_a, 2)), dy)
    da.shape, db.shape = _batched(node, a), _batched(node, b)
    if rank_a == 1:
        da = op.ReduceSum(da, range(rank_b - 1), keepdims=0)
    if rank_b == 1:
        db = op.Squeeze(db, [-1])
        db = op.ReduceSum(db, range(rank_a - 2), keepdims=0) if rank_a > 2 else db
    return [da, db]


def _batched(node: Node, x: Value) -> ir.Shape | None:
    """Return the shape of a product before it is summed back: the output's batch axes, then x's last two axes."""
    y, shape = node.outputs[0].shape, ranked(x)
    if y is None or shape.rank() < 2:
        return None
    batch = list(y)[: max(ranked(v).rank() for v in node.inputs if v is not None) - 2]
    return ir.Shape([*batch, *shape[-2:]])


def transposed(op: Builder, x: Value, rank: int) -> Value:
    """Return x with its last two axes swapped."""
    perm = [*range(rank - 2), rank - 1, rank - 2]
    if x.dtype != ir.DataType.DOUBLE:
        return op.Transpose(x, perm=perm)
    # onnxruntime 1.19 fuses Transpose and MatMul into an operator without a float64 kernel: separate them
    flat = op.Transpose(op.Unsqueeze(x, [0]), perm=[0, *(p + 1 for p in perm)])
    return op.Squeeze(flat, [0])


def _width(x: Value) -> int:
    last = ranked(x)[-1]
    return last if isinstance(last, int) else 0


RULES: Rules = {"Gemm": gemm, "MatMul": mat_mul}
