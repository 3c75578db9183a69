"""Matrix products other than Gemm."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.types import wide


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


def einsum(op: Backward, node: Node, dy: Value, *inputs: Value) -> Gradients:
    """Einsum: each input's gradient is the einsum of dy and the other inputs with input and output terms swapped.

    Letters that only one input has are summed in the forward, so its gradient is expanded along them.
    """
    terms, result = _equation(node, inputs)
    sizes, gradients = _sizes(terms, inputs), []
    for i, (term, x) in enumerate(zip(terms, inputs, strict=True)):
        other_terms = [(t, v) for j, (t, v) in enumerate(zip(terms, inputs, strict=True)) if j != i]
        seen = set(result).union(*(t for t, _ in other_terms))
        letters = "".join(c for c in dict.fromkeys(term) if c in seen)
        if other_terms:
            equation = ",".join([result, *(t for t, _ in other_terms)]) + "->" + letters
            dx = op.Einsum(dy, *(v for _, v in other_terms), equation=equation)
        else:
            dx = op.Transpose(dy, perm=[result.index(c) for c in letters]) if letters != result else dy
        dx = _spread(op, dx, letters, term, x)
        read = _sizes([t for t, _ in other_terms], [v for _, v in other_terms]) | {c: sizes[c] for c in result}
        whole = letters != term  # `_spread` expands
        dx.shape = ir.Shape([sizes[c] if whole else read[c] for c in term])  # 1 where x is broadcast by others
        gradients.append(dx)
    return gradients


def _sizes(terms: Sequence[str], inputs: Sequence[Value]) -> dict[str, Any]:
    """Return each letter's dimension; letters of `...` get the broadcast one."""
    pairs = [(c, d) for term, x in zip(terms, inputs, strict=True) for c, d in zip(term, ranked(x), strict=True)]
    return {c: wide([d for letter, d in pairs if letter == c]) for c, _ in pairs}


def _spread(op: Backward, dx: Value, letters: str, term: str, x: Value) -> Value:
    """Restore the letters that were summed, and the diagonals that a repeated letter reads."""
    missing = [i for i, c in enumerate(dict.fromkeys(term)) if c not in letters]
    repeated = [place for place, c in enumerate(term) if term.index(c) != place]
    for axes in (missing, repeated):
        dx = op.Unsqueeze(dx, axes) if axes else dx
    if missing or repeated:
        dx = op.Expand(dx, op.shape(x))
    for place in repeated:
        lines = [
            op.Reshape(op.Range(0, op.dim(x, axis), 1), [-1 if p == axis else 1 for p in range(len(term))])
            for axis in (term.index(term[place]), place)
        ]
        dx = op.Where(op.Equal(*lines), dx, 0)
    return dx


def _equation(node: Node, inputs: Sequence[Value]) -> tuple[list[str], str]:
    """Return the terms of an equation with an explicit output and with letters in place of `...`."""
    text = node.attributes["equation"].as_string().replace(" ", "")
    operands, arrow, result = text.partition("->")
    unused = "".join(c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in text)
    if not arrow:
        single = [c for c in sorted(set(operands) - set(",.")) if operands.count(c) == 1]
        result = ("..." if "..." in operands else "") + "".join(single)
    terms = operands.split(",")
    widths = [ranked(x).rank() - len(t.replace("...", "")) for t, x in zip(terms, inputs, strict=True)]
    most = max((w for w, t in zip(widths, terms, strict=True) if "..." in t), default=0)
    plain = [t.replace("...", unused[:most][most - w :]) for w, t in zip(widths, terms, strict=True)]
    return plain, result.replace("...", unused[:most])


RULES: Rules = {"Einsum": einsum, "MatMul": mat_mul}
