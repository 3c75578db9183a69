"""Arithmetic, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients


def elementwise(derivative: Callable[[Backward, ir.Value, ir.Value], ir.Value]) -> Callable[..., Gradients]:
    """Return the rule dx = dy · f′, with f′ written from (op, x, y)."""

    def rule(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
        x = node.inputs[0]
        assert x is not None
        return [op.Mul(dy, derivative(op, x, node.outputs[0]))]

    return rule


def add(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = a + b: da = dy, db = dy."""
    return [dy, dy]


def sub(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = a − b: da = dy, db = −dy."""
    return [dy, op.Neg(dy)]


def mul(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = a · b: da = dy · b, db = dy · a."""
    a, b = node.inputs
    return [op.Mul(dy, b), op.Mul(dy, a)]


def div(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = a / b: da = dy / b, db = −da · y."""
    da = op.Div(dy, node.inputs[1])
    return [da, op.Neg(op.Mul(da, node.outputs[0]))]


def power(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = aᵇ: da = dy · b · aᵇ⁻¹ (0 where b = 0), db = dy · y · log a (0 where a = 0 and b ≥ 0)."""
    a, b = node.inputs
    assert a is not None and b is not None
    constant = op.constant(b)
    if constant is not None and constant.size == 1:
        exponent = float(constant.numpy().ravel()[0])
        if exponent in (0, 1):
            return [op.Mul(dy, op.like(exponent, a)), None]
        lower = a if exponent == 2 else op.Pow(a, op.like(exponent - 1, a))
        return [op.Mul(dy, op.Mul(lower, op.like(exponent, a))), None]
    b_float = op.cast(b, a) if b.dtype != a.dtype else b
    zero = op.like(0, a)
    flat = op.Equal(b_float, zero)
    da = op.Where(flat, zero, op.Mul(b_float, op.Pow(a, op.Sub(b_float, op.like(1, a)))))
    positive = op.Greater(a, zero)
    log = op.Log(op.Where(positive, a, op.like(1, a)))
    nan = op.Where(op.Less(a, zero), op.like(math.nan, a), log)  # log of a negative number
    db = op.cast(op.Mul(dy, op.Mul(node.outputs[0], nan)), b) if b in op.active else None
    return [op.Mul(dy, da), db]


def add_all(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Sum: y = Σ xᵢ: dxᵢ = dy."""
    return [dy] * len(node.inputs)


def mean_all(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Mean: y = Σ xᵢ / n: dxᵢ = dy / n."""
    share = op.Mul(dy, op.like(1 / len(node.inputs), dy))
    return [share] * len(node.inputs)


def extreme_all(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Max, Min: the inputs that equal the result share dy evenly (PyTorch's `maximum`: halves at a tie of two)."""
    y = node.outputs[0]
    hits = [op.cast(op.Equal(x, y), y) for x in node.inputs]
    count = hits[0]
    for hit in hits[1:]:
        count = op.Add(count, hit)
    share = op.Div(dy, count)
    return [op.Mul(share, hit) for hit in hits]


def clip(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Clip: dx = dy where low ≤ x ≤ high, bounds included (PyTorch's `clamp`), else 0; bounds get the rest.

    Where low > high, y = high whatever x is, and low gets nothing.
    """
    x, low, high = (*node.inputs, None, None)[:3]
    inside, d_low, d_high = None, None, None
    if low is not None:
        inside = op.GreaterOrEqual(x, low)
        under = op.Less(x, low)
        d_low = op.Mul(dy, op.cast(under if high is None else op.And(under, op.Less(low, high)), x))
    if high is not None:
        below = op.LessOrEqual(x, high)
        inside = below if inside is None else op.And(inside, below)
        over = op.Greater(x, high)
        d_high = op.Mul(dy, op.cast(over if low is None else op.Or(over, op.Less(high, low)), x))
    return [dy if inside is None else op.Mul(dy, op.cast(inside, x)), d_low, d_high]


def where(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = a where c else b: each branch gets dy where it was taken."""
    condition, zero = node.inputs[0], op.like(0, node.outputs[0])
    return [None, op.Where(condition, dy, zero), op.Where(condition, zero, dy)]


def cast(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Cast between floats: dx = dy, cast back."""
    x = node.inputs[0]
    assert x is not None
    return [op.cast(dy, x)]


def mod(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """fmod: y = a − trunc(a / b) · b: da = dy, db = −dy · trunc(a / b)."""
    a, b = node.inputs
    return [dy, op.Neg(op.Mul(dy, op.Round(op.Div(op.Sub(a, node.outputs[0]), b))))]


def flat(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """A step function: its derivative is 0 almost everywhere, so nothing goes back."""
    return [None] * len(node.inputs)


RULES = {
    "Abs": elementwise(lambda op, x, y: op.Sign(x)),  # 0 at 0, as PyTorch
    "Add": add,
    "Cast": cast,
    "CastLike": lambda op, node, dy: [op.cast(dy, node.inputs[0]), None],
    "Ceil": flat,
    "Clip": clip,
    "Div": div,
    "Exp": elementwise(lambda op, x, y: y),
    "Floor": flat,
    "Identity": lambda op, node, dy: [dy],
    "Log": lambda op, node, dy: [op.Div(dy, node.inputs[0])],
    "Max": extreme_all,
    "Mean": mean_all,
    "Min": extreme_all,
    "Mod": mod,
    "Mul": mul,
    "Neg": lambda op, node, dy: [op.Neg(dy)],
    "Pow": power,
    "Reciprocal": lambda op, node, dy: [op.Neg(op.Mul(dy, op.Mul(node.outputs[0], node.outputs[0])))],
    "Round": flat,
    "Sign": flat,
    "Sqrt": lambda op, node, dy: [op.Div(dy, op.Mul(node.outputs[0], op.like(2, node.outputs[0])))],
    "Sub": sub,
    "Sum": add_all,
    "Where": where,
}
