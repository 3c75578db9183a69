"""Arithmetic, element by element. A gradient may be smaller than y here, as long as it broadcasts to it."""

import math
from collections.abc import Callable
from typing import Any

from onnx_ir import Node, Value

from ortpipe.stages.derive.backward import Backward, Gradients, Rules


def elementwise(derivative: Callable[[Backward, Value, Value], Value]) -> Callable[..., Gradients]:
    """Return the rule dx = dy · f′, with f′ written from (op, x, y)."""

    def rule(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
        return [op.Mul(dy, derivative(op, x, node.outputs[0]))]

    return rule


def mul(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """y = a · b: da = dy · b, db = dy · a."""
    return [op.Mul(dy, b), op.Mul(dy, a)]


def div(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """y = a / b: da = dy / b, db = −da · y."""
    da = op.Div(dy, b)
    return [da, op.Neg(op.Mul(da, node.outputs[0]))]


def power(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """y = aᵇ: da = dy · b · aᵇ⁻¹ (0 where b = 0), db = dy · y · log a (0 where a = 0 and b ≥ 0)."""
    zero, one, constant = op.like(0, a), op.like(1, a), op.constant(b)
    if constant is not None and constant.size == 1:
        exponent = float(constant.numpy().ravel()[0])
        if exponent in (0, 1):
            return [op.Mul(dy, op.like(exponent, a))]
        lower = a if exponent == 2 else op.Pow(a, op.like(exponent - 1, a))
        return [op.Mul(dy, op.Mul(lower, op.like(exponent, a)))]
    wide = op.cast(b, a) if b.dtype != a.dtype else b
    da = op.Where(op.Equal(wide, zero), zero, op.Mul(wide, op.Pow(a, op.Sub(wide, one))))
    if b not in op.active:
        return [op.Mul(dy, da)]
    positive = op.Greater(a, zero)
    log = op.Log(op.Where(positive, a, one))
    log = op.Where(op.Less(a, zero), op.like(math.nan, a), log)  # of a negative number there is none
    return [op.Mul(dy, da), op.Mul(dy, op.Mul(node.outputs[0], log))]


def mean(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """y = Σ xᵢ / n: dxᵢ = dy / n."""
    return [op.Mul(dy, op.like(1 / len(x), dy))] * len(x)


def extreme(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """Max, Min: the inputs that equal the result share dy evenly (PyTorch's `maximum`: halves at a tie of two)."""
    y = node.outputs[0]
    hits = [op.cast(op.Equal(v, y), y) for v in x]
    count = hits[0]
    for hit in hits[1:]:
        count = op.Add(count, hit)
    share = op.Div(dy, count)
    return [op.Mul(share, hit) for hit in hits]


def clip(
    op: Backward, node: Node, dy: Value, x: Value, low: Value | None = None, high: Value | None = None
) -> Gradients:
    """Clip: dx = dy where low ≤ x ≤ high, bounds included (PyTorch's `clamp`), else 0; bounds get the rest.

    Where low > high, y = high whatever x is, and low gets nothing.
    """
    inside: Any = None
    d_low, d_high = None, None
    if low is not None:
        inside, under = op.GreaterOrEqual(x, low), op.Less(x, low)
        d_low = op.Mul(dy, op.cast(under if high is None else op.And(under, op.Less(low, high)), x))
    if high is not None:
        below, over = op.LessOrEqual(x, high), op.Greater(x, high)
        inside = below if low is None else op.And(inside, below)
        d_high = op.Mul(dy, op.cast(over if low is None else op.Or(over, op.Less(high, low)), x))
    return [dy if inside is None else op.Mul(dy, op.cast(inside, x)), d_low, d_high]


def where(op: Backward, node: Node, dy: Value, condition: Value, a: Value, b: Value) -> Gradients:
    """y = a where c else b: each branch gets dy where it was taken."""
    zero = op.like(0, node.outputs[0])
    return [None, op.Where(condition, dy, zero), op.Where(condition, zero, dy)]


def mod(op: Backward, node: Node, dy: Value, a: Value, b: Value) -> Gradients:
    """fmod: y = a − trunc(a / b) · b: da = dy, db = −dy · trunc(a / b)."""
    return [dy, op.Neg(op.Mul(dy, op.Round(op.Div(op.Sub(a, node.outputs[0]), b))))]


def same(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """Add, Sum, Identity, Cast: dxᵢ = dy."""
    return [dy] * len(x)


def flat(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """A step function: its derivative is 0 almost everywhere, so nothing goes back."""
    return []


RULES: Rules = {
    "Abs": elementwise(lambda op, x, y: op.Sign(x)),  # 0 at 0, as PyTorch
    "Add": same,
    "Cast": same,
    "CastLike": lambda op, node, dy, x, like: [dy],
    "Ceil": flat,
    "Clip": clip,
    "Div": div,
    "Exp": elementwise(lambda op, x, y: y),
    "Floor": flat,
    "Identity": same,
    "Log": lambda op, node, dy, x: [op.Div(dy, x)],
    "Max": extreme,
    "Mean": mean,
    "Min": extreme,
    "Mod": mod,
    "Mul": mul,
    "Neg": lambda op, node, dy, x: [op.Neg(dy)],
    "Pow": power,
    "Reciprocal": lambda op, node, dy, x: [op.Neg(op.Mul(dy, op.Mul(node.outputs[0], node.outputs[0])))],
    "Round": flat,
    "Sign": flat,
    "Sqrt": lambda op, node, dy, x: [op.Div(dy, op.Mul(node.outputs[0], op.like(2, x)))],
    "Sub": lambda op, node, dy, a, b: [dy, op.Neg(dy)],
    "Sum": same,
    "Where": where,
}
