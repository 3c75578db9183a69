"""Variants of the gradient's operators that onnxruntime also runs with 0 rows.

Training always has rows, so only standalone gradient models use these variants.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import ranked
from ortpipe.autodiff.rules.linear import transposed
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import infer
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.rewrite import Rewrite, rewrite
from ortpipe.graph.core.types import equal

MOVES = having("moves") | {"Concat"}


def allow_no_rows(model: ir.Model) -> None:
    """Rewrite operators that onnxruntime 1.19 rejects, or leaves unset, if an axis has size 0."""
    infer(model)
    rewrite(model.graph, FORMS, nodes=list(model.graph.all_nodes()))


def _gemm(op: Builder, node: Node) -> Sequence[Value] | None:
    """Gemm needs entries to sum over."""
    (a, b, c), attributes = (*node.inputs, None)[:3], node.attributes
    assert a is not None and b is not None
    trans_a, trans_b = attributes.get_int("transA", 0), attributes.get_int("transB", 0)
    if _has_entries(a, 0 if trans_a else 1) or _has_entries(b, 1 if trans_b else 0):
        return None
    alpha, beta = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    y = _product(op, transposed(op, a, 2) if trans_a else a, transposed(op, b, 2) if trans_b else b)
    y = y if alpha == 1 else y * alpha
    return [y if c is None else y + (c if beta == 1 else c * beta)]


def _mat_mul(op: Builder, node: Node) -> Sequence[Value] | None:
    """MatMul does not repeat a matrix for a batch of 0, and leaves an empty sum unset."""
    a, b = node.inputs
    assert a is not None and b is not None
    sizes_a, sizes_b = query.sizes(a) or [], query.sizes(b) or []
    if len(sizes_a) == 2 < len(sizes_b) and not _has_entries(b, 0):
        batch = op.Concat(op.Shape(b, start=0, end=1), [1] * (len(sizes_b) - 3), op.Shape(a), axis=0)
        return [op.MatMul(op.Expand(a, batch), b)]
    most = max(len(sizes_a), len(sizes_b))
    if not sizes_a or not sizes_b or most == 1 or _has_entries(a, -1) or _has_entries(b, max(-2, -len(sizes_b))):
        return None
    empty_too = most > 2 and any(equal(d, ranked(a)[-1]) for d in node.outputs[0].shape or ())  # as in self-attention
    return None if empty_too else [_product(op, a, b)]


def _conv(op: Builder, node: Node) -> Sequence[Value] | None:
    """Conv without channels leaves its result unset, or hangs if it has pads; add a channel of zeros."""
    x, w, *bias = node.inputs
    assert w is not None
    if _has_entries(x, 1) or _has_entries(w, 1):
        return None
    missing = op.cast(op.Equal(op.Shape(w, start=1, end=2), 0), Value(type=ir.TensorType(ir.DataType.INT64)))
    first = np.eye(2 * ranked(w).rank(), dtype=np.int64)[1]
    x, w = (op.Pad(v, missing * op.const(first * n)) for v, n in ((x, node.attributes.get_int("group", 1)), (w, 1)))
    return [op.Conv(x, w, *bias, **node.attributes)]


def _reshape(op: Builder, node: Node) -> Sequence[Value] | None:
    """Reshape reads a size of 0 as "copy", and cannot infer −1 if it copies a 0."""
    (x, shape), sizes = node.inputs, query.sizes(node.inputs[0])
    if node.attributes.get_int("allowzero", 0) or sizes is None:
        return None
    if (to := query.constant(shape)) is None:
        return [op.Reshape(x, shape, allowzero=1)] if _are_sizes(shape) else None
    copied = np.flatnonzero(to == 0).tolist()
    if -1 not in to or all(sizes[i] for i in copied):
        return None
    joined = op.Gather(op.Shape(x), [i for i in range(len(sizes)) if i not in copied])
    size = op.ReduceProd(joined, keepdims=0) / int(to[to > 0].prod())
    return [op.Reshape(x, op.Where(op.const(to < 0), size, op.const(to)))]


def _are_sizes(shape: Value | None) -> bool:
    """Return whether a vector consists of dimensions of values and of positive numbers."""
    node, numbers = shape.producer() if shape is not None else None, query.constant(shape)
    if node is None or numbers is not None:
        return numbers is not None and bool((numbers > 0).all())
    read = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in ("Shape", "Size") or (node.op_type in MOVES and all(map(_are_sizes, read)))


def _product(op: Builder, a: Value, b: Value) -> Value:
    """Return a · b, or zeros for an empty sum; onnxruntime does not fuse an Add after the Where to a Gemm."""
    return op.Where(op.Greater(op.Size(a), 0), op.MatMul(a, b), op.like(0, a))


def _has_entries(x: Value | None, axis: int) -> bool:
    """Return whether an axis has a static, positive size."""
    sizes = query.sizes(x)
    return bool(sizes and sizes[axis])


FORMS: Mapping[str, Rewrite] = {"Conv": _conv, "Gemm": _gemm, "MatMul": _mat_mul, "Reshape": _reshape}
