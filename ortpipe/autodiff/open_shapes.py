"""Gradients whose shapes are known at run time only, or have another rank than their values."""

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Value

from ortpipe.errors import DeriveError
from ortpipe.graph.core.types import equal, same


def ranked(x: Value) -> ir.Shape:
    """Return a value's shape for rules that count axes; raise DeriveError if the rank is unknown."""
    if x.shape is None:
        node = x.producer()
        raise DeriveError(
            "The gradient of most operators needs values of known rank.",
            got=f"{x.name!r}, which {node.op_type if node is not None else 'the model'} gives, of unknown rank",
            fix="Give the graph's inputs shapes, or the value a value_info; or freeze the parameters in front of it.",
        )
    return x.shape


def unbroadcast_dynamic(op: Any, gradient: Value, x: Value, y: Value | None) -> Value:
    """Sum over the axes where x's shape, padded with ones in front, is 1.

    An extra leading axis guarantees at least one axis to sum over: with none, onnxruntime's ReduceSum is wrong for
    an empty gradient.
    """
    g, whole = gradient.shape, (x if y is None else y).shape
    static_shape = None if g is None or whole is None else ir.Shape([None] * max(g.rank(), whole.rank() + 1))
    unit, shape = op.const(np.ones(1, np.int64)), op.Shape(x)
    gradient = op.Expand(gradient, op.Concat(unit, shape if y is None else op.Shape(y), axis=0))
    gradient.type, gradient.shape = x.type, static_shape
    missing = op.Sub(op.Shape(op.Shape(gradient)), op.Shape(shape))
    padded = op.Concat(op.Expand(unit, missing), shape, axis=0)
    total = op.ReduceSum(gradient, op.vector(op.NonZero(op.Equal(padded, unit))), keepdims=1)
    total.type, total.shape = x.type, static_shape  # the second derivative scans it: scan outputs need a rank
    result = op.Reshape(total, shape, allowzero=1)
    result.type, result.shape = x.type, x.shape
    return result


def reshaped_like(op: Any, gradient: Value, x: Value) -> Value:
    """Return a gradient with x's shape; one unknown dimension is left to the runtime."""
    shape, dims = gradient.shape, list(x.shape) if x.shape is not None else [None, None]
    if shape is not None and x.shape is not None:
        extra = shape.rank() - x.shape.rank()
        if same(shape, x.shape):
            return gradient
        front, behind = shape[: max(extra, 0)], shape[max(extra, 0) :]
        fits = (d == 1 or equal(d, w) for d, w in zip(behind, dims, strict=False))
        if extra > 0 and dims and all(d == 1 for d in front) and all(fits):
            result = op.Squeeze(gradient, range(extra))
            result.shape = ir.Shape(behind)
            return result
    if 0 in dims:
        return op.zeros(x)
    if len([d for d in dims if not isinstance(d, int)]) <= 1:
        result = op.Reshape(gradient, [d if isinstance(d, int) else -1 for d in dims])
    else:
        result = op.Reshape(gradient, op.Shape(x), allowzero=1)
    result.shape = x.shape
    return result


def with_axes_again(reduced: Any, value: Value) -> Value:
    """Return a value of a reduction's output with the axes that the reduction removed, or that are no constant."""
    op, x, y, axes = reduced.op, reduced.x.shape, reduced.y, reduced.axes
    if reduced.dynamic is not None:
        unsqueezed = value if reduced.keepdims else op.Unsqueeze(op.full(value, y), reduced.dynamic)
        expanded: Value = op.full(unsqueezed, reduced.x)
        return expanded
    if axes is None or (x is not None and len(axes) == x.rank()):
        return value  # a scalar broadcasts
    if x is None or value.shape is None or value.shape.rank() + len(axes) != x.rank():
        value = op.full(value, y)  # with fewer axes than y, they would be counted from the wrong end
    wide: Value = op.Unsqueeze(value, axes)
    if x is not None and value.shape is not None:
        dims = iter(value.shape)
        wide.shape = ir.Shape([1 if i in axes else next(dims) for i in range(x.rank())])
    return wide
