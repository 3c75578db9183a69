"""Elementwise arithmetic. Here a gradient may be smaller than y, as long as it broadcasts to y."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules


def elementwise(derivative: Callable[[Backward, Value, Value], Value]) -> Callable[..., Gradients]:
    """Return the rule dx = dy · f′, where `derivative` writes f′ from (op, x, y)."""

    def rule(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
        return [dy * derivative(op, x, node.outputs[0])]

    return rule


def div(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """y = a / b: da = dy / b, db = −da · y."""
    da = dy / b
    return [da, -(da * node.outputs[0])]


def power(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """y = aᵇ: da = dy · b · aᵇ⁻¹ (0 where b = 0), db = dy · y · log a (0 where a = 0 and b ≥ 0)."""
    constant = op.constant(b)
    if constant is not None and constant.size == 1:
        exponent = float(constant.numpy().ravel()[0])
        if exponent in (0, 1):
            return [dy * exponent]
        lower = a if exponent == 2 else op.Pow(a, exponent - 1)
        return [dy * (lower * exponent)]
    wide = op.cast(b, a) if b.dtype != a.dtype else b
    da = dy * op.Where(op.Equal(wide, 0), 0, wide * op.Pow(a, wide - 1))
    if b not in op.active:
        return [da]
    log = op.Log(op.Where(op.Greater(a, 0), a, 1))
    log = op.Where(op.Less(a, 0), math.nan, log)  # undefined for negative numbers
    return [da, dy * (node.outputs[0] * log)]


def extreme(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """Max, Min: the inputs that equal the result share dy evenly (PyTorch's `maximum`: halves at a tie of two)."""
    y = node.outputs[0]
    hits = [op.cast(op.Equal(v, y), y) for v in x]
    share = dy / functools.reduce(operator.add, hits)
    return [share * hit for hit in hits]


def clip(
    op: Backward, node: Node, dy: Value, x: Value, low: Value | None = None, high: Value | None = None
) -> Gradients:
    """Clip: dx = dy where low ≤ x ≤ high, bounds included (PyTorch's `clamp`), else 0; the bounds get the rest.

    If low > high, y = high for every x, and low gets nothing.
    """
    inside: Any = None
    d_low, d_high = None, None
    if low is not None:
        inside, under = op.GreaterOrEqual(x, low), op.Less(x, low)
        d_low = dy * op.cast(under if high is None else op.And(under, op.Less(low, high)), x)
    if high is not None:
        below, over = op.LessOrEqual(x, high), op.Greater(x, high)
        inside = below if low is None else op.And(inside, below)
        d_high = dy * op.cast(over if low is None else op.Or(over, op.Less(high, low)), x)
    return [dy if inside is None else dy * op.cast(inside, x), d_low, d_high]


def mod(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """fmod: y = a − trunc(a / b) · b: da = dy, db = −dy · trunc(a / b)."""
    return [dy, -(dy * op.Round((a - node.outputs[0]) / b))]


def same(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """Add, Sum, Identity, Cast: dxᵢ = dy."""
    return [dy] * len(x)


def flat(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """A step function: its derivative is 0 almost everywhere, so no gradient is returned."""
    return []


RULES: Rules = {
    "Abs": elementwise(lambda op, x, y: op.Sign(x)),  # 0 at 0, as PyTorch
    "Acos": elementwise(lambda op, x, y: -op.Reciprocal(op.Sqrt(1 - x * x))),
    "Acosh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(-1 + x * x))),
    "Add": same,
    "Asin": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(1 - x * x))),
    "Asinh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(1 + x * x))),
    "Atan": elementwise(lambda op, x, y: op.Reciprocal(1 + x * x)),
    "Atanh": elementwise(lambda op, x, y: op.Reciprocal(1 - x * x)),
    "Cast": same,
    "CastLike": lambda op, node, dy, x, like: [dy],
    "Ceil": flat,
    "Clip": clip,
    "Cos": elementwise(lambda op, x, y: -op.Sin(x)),
    "Cosh": elementwise(lambda op, x, y: op.Sinh(x)),
    "Div": div,
    "Exp": elementwise(lambda op, x, y: y),
    "Floor": flat,
    "Identity": same,
    "Log": lambda op, node, dy, x: [dy / x],
    "Max": extreme,
    "Mean": lambda op, node, dy, *x: [dy * (1 / len(x))] * len(x),
    "Min": extreme,
    "Mod": mod,
    "Mul": lambda op, node, dy, a, b: [dy * b, dy * a],
    "Neg": lambda op, node, dy, x: [-dy],
    "Pow": power,
    "Reciprocal": lambda op, node, dy, x: [-(dy * (node.outputs[0] * node.outputs[0]))],
    "Round": flat,
    "Sign": flat,
    "Sin": elementwise(lambda op, x, y: op.Cos(x)),
    "Sinh": elementwise(lambda op, x, y: op.Cosh(x)),
    "Sqrt": lambda op, node, dy, x: [dy / (node.outputs[0] * 2)],
    "Sub": lambda op, node, dy, a, b: [dy, -dy],
    "Sum": same,
    "Tan": elementwise(lambda op, x, y: 1 + y * y),
    "Where": lambda op, node, dy, c, a, b: [None, op.Where(c, dy, 0), op.Where(c, 0, dy)],
}
