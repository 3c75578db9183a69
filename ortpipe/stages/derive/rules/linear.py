"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients, ranked
from ortpipe.stages.derive.dimensions import wide
from ortpipe.stages.derive.rules.activations import integer, number


def gemm(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = α · A′B′ + β · C: dA′ = α · dy·B′ᵀ, dB′ = α · A′ᵀ·dy, dC = β · dy."""
    a, b, c = (*node.inputs, None)[:3]
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    trans_a, trans_b = integer(node, "transA", 0), integer(node, "transB", 0)
    dy = op.full(dy, node.outputs[0])
    given = {"alpha": alpha} if alpha != 1 else {}
    da = op.Gemm(b, dy, transA=trans_b, transB=1, **given) if trans_a else op.Gemm(dy, b, transB=1 - trans_b, **given)
    db = op.Gemm(dy, a, transA=1, transB=trans_a, **given) if trans_b else op.Gemm(a, dy, transA=1 - trans_a, **given)
    return [_shaped(da, a), _shaped(db, b), op.Mul(dy, op.like(beta, dy)) if c is not None else None]


def mat_mul(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = A·B: dA = dy·Bᵀ, dB = Aᵀ·dy, summed over the batch axes that were broadcast."""
    a, b = node.inputs
    assert a is not None and b is not None
    dy = op.full(dy, node.outputs[0])
    rank_a, rank_b = ranked(a).rank(), ranked(b).rank()
    if rank_a == 2 and rank_b == 2:
        return [_shaped(op.Gemm(dy, b, transB=1), a), _shaped(op.Gemm(a, dy, transA=1), b)]
    if rank_a == 1 and rank_b == 1:
        return [op.Mul(dy, b), op.Mul(dy, a)]
    wide_a = op.Unsqueeze(a, op.ints([0])) if rank_a == 1 else a
    wide_b = op.Unsqueeze(b, op.ints([1])) if rank_b == 1 else b
    wide_dy = op.Unsqueeze(dy, op.ints([-2])) if rank_a == 1 else dy
    wide_dy = op.Unsqueeze(wide_dy, op.ints([-1])) if rank_b == 1 else wide_dy
    if (
        rank_b == 2 and rank_a > 2 and _dim(a) and _dim(dy)
    ):  # rows of every batch entry against one matrix: two plain products
        flat_a, flat_dy = op.reshape(a, [-1, _dim(a)]), op.reshape(dy, [-1, _dim(dy)])
        da = op.MatMul(dy, _transposed(op, b, 2))
        return [_shaped(da, a), _shaped(op.Gemm(flat_a, flat_dy, transA=1), b)]
    da = op.MatMul(wide_dy, _transposed(op, wide_b, max(rank_b, 2)))
    db = op.MatMul(_transposed(op, wide_a, max(rank_a, 2)), wide_dy)
    da.shape, db.shape = _batched(node, a, da, op), _batched(node, b, db, op)
    if rank_a == 1:
        da = op.ReduceSum(da, op.ints(list(range(rank_b - 1))), keepdims=0)
        da.shape = a.shape
    if rank_b == 1:
        axes = list(range(rank_a - 2))
        db = op.Squeeze(db, op.ints([-1]))
        db = op.ReduceSum(db, op.ints(axes), keepdims=0) if axes else db
        db.shape = b.shape
    return [da, db]


def _batched(node: ir.Node, x: ir.Value, dx: ir.Value, op: Backward) -> ir.Shape | None:
    """Return the shape of a product before it is summed back: the output's batch axes, x's own last two."""
    y = node.outputs[0].shape
    if y is None or x.shape is None or x.shape.rank() < 2:
        return None
    own = [ranked(v).rank() for v in node.inputs if v is not None]
    batch = list(y)[: max(own) - 2]
    return ir.Shape([*batch, *list(x.shape)[-2:]])


def _transposed(op: Backward, x: ir.Value, rank: int) -> ir.Value:
    perm = [*range(rank - 2), rank - 1, rank - 2]
    if x.dtype != ir.DataType.DOUBLE:
        return op.Transpose(x, perm=perm)
    # onnxruntime 1.19 fuses Transpose and MatMul to an operator that it has no float64 kernel of: stand between them
    flat = op.Transpose(op.Unsqueeze(x, op.ints([0])), perm=[0, *(p + 1 for p in perm)])
    return op.Squeeze(flat, op.ints([0]))


def _dim(x: ir.Value) -> int:
    last = ranked(x)[-1]
    return last if isinstance(last, int) else 0


def _shaped(gradient: ir.Value, x: ir.Value | None) -> ir.Value:
    if x is not None:
        gradient.type, gradient.shape = x.type, x.shape
    return gradient


def einsum(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Einsum: each input's gradient is the einsum of dy and the other inputs with input and output terms swapped.

    Letters of one input alone are summed out forward, so that its gradient is expanded along them.
    """
    terms, result = _equation(node)
    sizes = _sizes(terms, node)
    dy = op.full(dy, node.outputs[0])
    gradients: list[ir.Value | None] = []
    for i, x in enumerate(node.inputs):
        assert x is not None
        others = [(t, v) for j, (t, v) in enumerate(zip(terms, node.inputs, strict=True)) if j != i]
        seen = set(result).union(*(t for t, _ in others))
        kept = "".join(c for c in dict.fromkeys(terms[i]) if c in seen)
        equation = ",".join([result, *(t for t, _ in others)]) + "->" + kept
        if others:
            made = op.Einsum(dy, *(v for _, v in others), equation=equation)
        else:
            made = op.Transpose(dy, perm=[result.index(c) for c in kept]) if kept != result else dy
        made = _spread(op, made, kept, terms[i], x)
        made.type, made.shape = x.type, ir.Shape([sizes[c] for c in terms[i]])  # summed where x was broadcast
        gradients.append(made)
    return gradients


def _sizes(terms: Sequence[str], node: ir.Node) -> dict[str, Any]:
    """Return each letter's dimension, the broadcast one where `...` has several."""
    shapes = [x.shape for x in node.inputs if x is not None and x.shape is not None]
    pairs = [(c, d) for term, shape in zip(terms, shapes, strict=True) for c, d in zip(term, shape, strict=True)]
    return {c: wide([d for letter, d in pairs if letter == c]) for c, _ in pairs}


def _spread(op: Backward, made: ir.Value, kept: str, term: str, x: ir.Value) -> ir.Value:
    """Put back the letters that were summed out, and the diagonals that a repeated letter reads."""
    unique = "".join(dict.fromkeys(term))
    missing = [i for i, c in enumerate(unique) if c not in kept]
    again = [p for p, c in enumerate(term) if term.index(c) != p]
    if missing:
        made = op.Unsqueeze(made, op.ints(missing))
    if again:
        made = op.Unsqueeze(made, op.ints(again))
    if missing or again:
        made = op.Expand(made, op.shape(x))
    for position in again:
        lines = []
        for axis in (term.index(term[position]), position):
            line = op.Range(op.const(np.int64(0)), op.dim(x, axis), op.const(np.int64(1)))
            lines.append(op.Reshape(line, op.ints([-1 if p == axis else 1 for p in range(len(term))])))
        made = op.Where(op.Equal(*lines), made, op.like(0, x))
    return made


def _equation(node: ir.Node) -> tuple[list[str], str]:
    """Return the terms of an equation with an explicit result and letters in place of `...`."""
    text = node.attributes["equation"].as_string().replace(" ", "")
    left, arrow, result = text.partition("->")
    terms: Sequence[str] = left.split(",")
    spare = [c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in text]
    width = 0
    for term, x in zip(terms, node.inputs, strict=True):
        if "..." in term and x is not None:
            width = max(width, ranked(x).rank() - len(term.replace("...", "")))
    if not arrow:
        single = [c for c in sorted(set(left) - set(",.")) if left.count(c) == 1]
        result = ("..." if "..." in left else "") + "".join(single)
    plain = []
    for term, x in zip(terms, node.inputs, strict=True):
        own = ranked(x).rank() - len(term.replace("...", "")) if x is not None else 0
        plain.append(term.replace("...", "".join(spare[:width][width - own :])))
    return plain, result.replace("...", "".join(spare[:width]))


RULES = {
    "Einsum": einsum,
    "Gemm": gemm,
    "MatMul": mat_mul,
}
