"""Elementwise functions beyond plain arithmetic, such as activations, and the softmax family."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.graph.core import query


def elementwise(derivative: Callable[[Backward, Value, Value], Value]) -> Callable[..., Gradients]:
    """Return the rule dx = dy · f′, where `derivative` writes f′ from (op, x, y)."""

    def rule(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
        return [dy * derivative(op, x, node.outputs[0])]

    return rule


def flat(op: Backward, node: Node, dy: Value, *x: Value) -> Gradients:
    """A step function: its derivative is 0 almost everywhere, so no gradient is returned."""
    return []


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


def leaky(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LeakyRelu: dx = dy for x > 0, else alpha · dy (also at 0, as PyTorch)."""
    return [op.Where(op.Greater(x, 0), dy, dy * node.attributes.get_float("alpha", 0.01))]


def prelu(op: Backward, node: Node, dy: Value, x: Value, slope: Value) -> Gradients:
    """PRelu: dx = dy for x > 0, else slope · dy; dslope = dy · min(x, 0)."""
    positive = op.Greater(x, 0)
    return [op.Where(positive, dy, dy * slope), op.Where(positive, 0, dy * x)]


def elu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Elu: f′ = 1 for x > 0, else alpha · exp(x) = y + alpha."""
    return [op.Where(op.Greater(x, 0), dy, dy * (node.outputs[0] + node.attributes.get_float("alpha", 1.0)))]


def celu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Celu: f′ = 1 for x > 0, else exp(x / alpha)."""
    return [dy * op.Exp(op.Min(x, 0) / node.attributes.get_float("alpha", 1.0))]


def selu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Selu: f′ = gamma for x > 0, else gamma · alpha · exp(x) = y + gamma · alpha."""
    alpha = node.attributes.get_float("alpha", 1.67326319217681884765625)
    gamma = node.attributes.get_float("gamma", 1.05070102214813232421875)
    return [dy * op.Where(op.Greater(x, 0), gamma, node.outputs[0] + gamma * alpha)]


def thresholded(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """ThresholdedRelu: dx = dy where x > alpha."""
    return [dy * op.cast(op.Greater(x, node.attributes.get_float("alpha", 1.0)), x)]


def shrink(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Shrink: dx = dy where |x| > lambd."""
    return [dy * op.cast(op.Greater(op.Abs(x), node.attributes.get_float("lambd", 0.5)), x)]


def hard_sigmoid(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """HardSigmoid: f′ = alpha where 0 < y < 1, else 0."""
    y, alpha = node.outputs[0], node.attributes.get_float("alpha", 0.2)
    inside = op.And(op.Greater(y, 0), op.Less(y, 1))
    return [dy * (op.cast(inside, y) * alpha)]


def hard_swish(op: Backward, x: Value, y: Value) -> Value:
    """HardSwish y = x · s with s = clip(x / 6 + ½, 0, 1): f′ = s + x / 6 · [−3 < x < 3] (bounds as PyTorch).

    In float32 ThresholdedRelu computes x · [x > a]; with a Where, onnxruntime makes three passes over x.
    """
    if x.dtype == ir.DataType.FLOAT:
        below = float(np.nextafter(np.float32(3), np.float32(0)))  # x > below: x ≥ 3
        inside = op.ThresholdedRelu(x, alpha=-3.0) - op.ThresholdedRelu(x, alpha=below)
        return op.HardSigmoid(x, alpha=1 / 6, beta=0.5) + inside * (1 / 6)
    return op.Where(op.LessOrEqual(x, -3), 0, op.Where(op.GreaterOrEqual(x, 3), 1, x * (1 / 3) + 0.5))


def softsign(op: Backward, x: Value, y: Value) -> Value:
    """y = x / (1 + |x|): f′ = 1 / (1 + |x|)², which unlike (1 − |y|)² is exact for large x."""
    slope = 1 / (1 + op.Abs(x))
    return slope * slope


def gelu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Gelu x · Φ(x): f′ = Φ(x) + x · φ(x); with approximate="tanh", Φ is ½(1 + tanh(√(2/π)(x + 0.044715·x³)))."""
    if node.attributes.get_string("approximate", "none") == "tanh":
        c, square = math.sqrt(2 / math.pi), x * x
        t = op.Tanh(x * (1 + square * 0.044715) * c)
        bell = (1 - t * t) * ((1 + square * (3 * 0.044715)) * c) * 0.5
        return [dy * ((1 + t) * 0.5 + x * bell)]
    phi = (op.Erf(x * math.sqrt(0.5)) + 1) * 0.5
    density = op.Exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return [dy * (phi + x * density)]


def mish(op: Backward, x: Value, y: Value) -> Value:
    """Mish x · tanh(s), s = softplus(x): f′ = tanh(s) + x · σ(x) · (1 − tanh²(s))."""
    t = op.Tanh(op.Softplus(x))
    return t + x * op.Sigmoid(x) * (1 - t * t)


def softmax(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Softmax: dx = (dy − Σ dy·y) · y; 0 in rows that a later Where replaces, such as all −∞, whose y is nan."""
    axis = op.axis(node, node.outputs[0])
    y = _without_replaced_rows(node.outputs[0], axis)
    weighted = dy * y
    return [weighted - op.sum(weighted, [axis], keepdims=True) * y]


def _without_replaced_rows(y: Value, axis: int) -> Value:
    """Return the result of a Where that replaces whole rows of y, if it is y's only use: dy is 0 in these rows."""
    readers = [use.node for use in y.uses() if (use.node.op_type, use.idx) != ("CastLike", 1)]
    if len(readers) != 1 or y.is_graph_output() or readers[0].op_type != "Where" or readers[0].inputs[2] is not y:
        return y
    [reader] = readers
    (chosen, zero, _), replaced = reader.inputs, reader.outputs[0]
    cast = zero.producer() if zero is not None else None
    sizes = query.sizes(chosen)
    replacement = query.constant(cast.inputs[0] if cast is not None and cast.inputs else zero)
    is_cast = cast is None or cast.op_type in ("Cast", "CastLike", "Constant")
    is_zero = is_cast and replacement is not None and not replacement.any()
    if not is_zero or sizes is None or y.shape is None or replaced.shape != y.shape:
        return y
    where = axis - y.shape.rank() + len(sizes)
    return replaced if where < 0 or sizes[where] == 1 else y


def log_softmax(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LogSoftmax: dx = dy − exp(y) · Σ dy."""
    y = node.outputs[0]
    return [dy - op.Exp(y) * op.sum(dy, [op.axis(node, y)], keepdims=True)]


RULES: Rules = {
    "Abs": elementwise(lambda op, x, y: op.Sign(x)),  # 0 at 0, as PyTorch
    "Acos": elementwise(lambda op, x, y: -op.Reciprocal(op.Sqrt(1 - x * x))),
    "Acosh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(-1 + x * x))),
    "Asin": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(1 - x * x))),
    "Asinh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(1 + x * x))),
    "Atan": elementwise(lambda op, x, y: op.Reciprocal(1 + x * x)),
    "Atanh": elementwise(lambda op, x, y: op.Reciprocal(1 - x * x)),
    "Ceil": flat,
    "Celu": celu,
    "Clip": clip,
    "Cos": elementwise(lambda op, x, y: -op.Sin(x)),
    "Cosh": elementwise(lambda op, x, y: op.Sinh(x)),
    "Elu": elu,
    "Erf": elementwise(lambda op, x, y: op.Exp(-(x * x)) * (2 / math.sqrt(math.pi))),
    "Floor": flat,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": elementwise(hard_swish),
    "Hardmax": flat,
    "LeakyRelu": leaky,
    "LogSoftmax": log_softmax,
    "Max": extreme,
    "Min": extreme,
    "Mish": elementwise(mish),
    "Mod": mod,
    "PRelu": prelu,
    "Pow": power,
    "Round": flat,
    "Selu": selu,
    "Shrink": shrink,
    "Sigmoid": elementwise(lambda op, x, y: y * (1 - y)),
    "Sign": flat,
    "Sin": elementwise(lambda op, x, y: op.Cos(x)),
    "Sinh": elementwise(lambda op, x, y: op.Cosh(x)),
    "Softmax": softmax,
    "Softplus": elementwise(lambda op, x, y: op.Sigmoid(x)),
    "Softsign": elementwise(softsign),
    "Tan": elementwise(lambda op, x, y: 1 + y * y),
    "Tanh": elementwise(lambda op, x, y: 1 - y * y),
    "ThresholdedRelu": thresholded,
}
