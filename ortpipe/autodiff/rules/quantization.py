"""Rounding to integers and back, per tensor, per channel of an axis, or per block of an axis.

    QuantizeLinear    q = clip(round(x / s) + z, low, high), the type's bounds
    DequantizeLinear  y = (q - z) · s

The gradient ignores the rounding (the straight-through estimator, Bengio et al. 2013) and is 0 where x / s + z exceeds
the bounds. Together the two rules give scales the gradient of LSQ (Esser et al., ICLR 2020): ds = Σ dy · (round(x / s)
- x / s) inside, Σ dy · (low - z) or Σ dy · (high - z) outside. Zero points are integers and have no gradient.
"""

from typing import Any

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.autodiff.rules.pooling import along
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query


def quantize(op: Backward, node: Node, dy: Value, x: Value, scale: Value, zero: Value | None = None) -> Gradients:
    """QuantizeLinear: dx = dy / s inside the bounds, else 0; ds = -Σ dx · x / s."""
    kind = node.outputs[0].dtype
    if kind is None:
        raise DeriveError(
            "The bounds of QuantizeLinear are those of its output's type.",
            got=f"{query.called(node)} of unknown type",
            fix="Give it a zero point, or its output a value_info.",
        )
    wide: Any = _spread(op, node, _like(op, scale, x), x)
    shift = _offset(op, node, zero, x, x)
    low, high = (float(bound) if shift is None else float(bound) - shift for bound in (kind.min, kind.max))
    dx: Any = op.Where(op.And(op.GreaterOrEqual(x, wide * low), op.LessOrEqual(x, wide * high)), dy, 0) / wide
    return [dx, _gathered(op, node, -(dx * (x / wide)), scale, x) if scale in op.active else None]


def dequantize(op: Backward, node: Node, dy: Value, q: Value, scale: Value, zero: Value | None = None) -> Gradients:
    """DequantizeLinear: dq = dy · s, ds = Σ dy · (q - z)."""
    dq = dy * _spread(op, node, _like(op, scale, dy), q) if q in op.active else None
    if scale not in op.active:
        return [dq]
    steps: Any = op.cast(q, dy)
    shift = _offset(op, node, zero, q, dy)
    steps = steps if shift is None else steps - shift
    return [dq, _gathered(op, node, dy * steps, scale, q)]


def _like(op: Backward, scale: Value, x: Value) -> Value:
    return scale if scale.dtype == x.dtype else op.cast(scale, x)


def _offset(op: Backward, node: Node, zero: Value | None, x: Value, like: Value) -> Any:
    """Return a zero point as a float that broadcasts to x, or None if it is 0."""
    constant = query.constant(zero)
    if zero is None or (constant is not None and not constant.astype(np.float32).any()):
        return None
    assert like.dtype is not None
    cast = op.cast(zero, like) if constant is None else op.const(constant.astype(like.dtype.numpy()))
    return _spread(op, node, cast, x)


def _spread(op: Backward, node: Node, numbers: Value, x: Value) -> Value:
    """Return a scale or a zero point so that it broadcasts to x."""
    if not ranked(numbers).rank():
        return numbers
    axis, block = _axis(op, node, x)
    if block:
        size = ranked(x)[axis]
        if not isinstance(size, int):
            raise DeriveError(
                "The gradient of blocks needs an axis of known size.",
                got=f"{query.called(node)}: axis {axis} of {x.name!r} is {size}",
                fix="Give the graph's inputs static shapes.",
            )
        return op.Gather(numbers, np.arange(size) // block, axis=axis)
    if ranked(numbers)[0] == 1 and ranked(numbers).rank() == 1 and not block:
        return op.reshape(numbers, [])
    return op.reshape(numbers, [-1 if i == axis else 1 for i in range(ranked(x).rank())])


def _gathered(op: Backward, node: Node, terms: Value, scale: Value, x: Value) -> Value:
    """Return Σ terms over the entries that share a scale, in the scale's shape."""
    terms = op.full(terms, x)
    terms.type, terms.shape, rank = scale.type, x.shape, ranked(x).rank()
    if not ranked(scale).rank() or (ranked(scale).rank() == 1 and ranked(scale)[0] == 1):
        return op.reshape_like(op.sum(terms, range(rank)), scale)
    axis, block = _axis(op, node, x)
    if block:
        blocks = np.arange(int(ranked(x)[axis])) // block  # type: ignore[arg-type]  # static: checked by `_spread`
        members = np.equal.outer(np.unique(blocks), blocks)
        return along(op, terms, axis, op.cast(op.const(members), terms))
    return op.reshape_like(op.sum(terms, [i for i in range(rank) if i != axis]), scale)


def _axis(op: Backward, node: Node, x: Value) -> tuple[int, int]:
    """Return the axis of channels or blocks, and the block size (0: none)."""
    return op.axis(node, x, 1), node.attributes.get_int("block_size", 0)


RULES: Rules = {"DequantizeLinear": dequantize, "QuantizeLinear": quantize}
