"""Activation functions, and the softmax family."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients
from ortpipe.stages.derive.rules.arithmetic import elementwise


def number(node: ir.Node, name: str, default: float) -> float:
    """Return a float attribute."""
    return node.attributes[name].as_float() if name in node.attributes else default


def integer(node: ir.Node, name: str, default: int) -> int:
    """Return an int attribute."""
    return node.attributes[name].as_int() if name in node.attributes else default


def mask(op: Backward, condition: ir.Value, like: ir.Value) -> ir.Value:
    """Return a condition as 0 and 1."""
    return op.cast(condition, like)


def relu(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = max(x, 0): dx = dy · [y > 0]; 0 at 0, as PyTorch.

    In float32 [y > 0] is min(1, y · 3.4e38), which is one kernel and 0 or 1 for every y that is not subnormal;
    comparing and casting takes three times as long.
    """
    y = node.outputs[0]
    if y.dtype == ir.DataType.FLOAT:
        return [op.Mul(dy, op.HardSigmoid(y, alpha=float(np.finfo(np.float32).max), beta=0.0))]
    return [op.Mul(dy, mask(op, op.Greater(y, op.like(0, y)), y))]


def leaky(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """LeakyRelu: dx = dy for x > 0, else alpha · dy (also at 0, as PyTorch)."""
    x = node.inputs[0]
    assert x is not None
    alpha = number(node, "alpha", 0.01)
    return [op.Where(op.Greater(x, op.like(0, x)), dy, op.Mul(dy, op.like(alpha, x)))]


def prelu(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """PRelu: dx = dy for x > 0, else slope · dy; dslope = dy · min(x, 0)."""
    x, slope = node.inputs
    assert x is not None
    positive = op.Greater(x, op.like(0, x))
    return [op.Where(positive, dy, op.Mul(dy, slope)), op.Where(positive, op.like(0, x), op.Mul(dy, x))]


def elu(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Elu: f′ = 1 for x > 0, else alpha · exp(x) = y + alpha."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    alpha = op.like(number(node, "alpha", 1.0), x)
    return [op.Where(op.Greater(x, op.like(0, x)), dy, op.Mul(dy, op.Add(y, alpha)))]


def celu(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Celu: f′ = 1 for x > 0, else exp(x / alpha)."""
    x = node.inputs[0]
    assert x is not None
    zero, alpha = op.like(0, x), op.like(number(node, "alpha", 1.0), x)
    return [op.Mul(dy, op.Exp(op.Div(op.Min(x, zero), alpha)))]


def selu(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Selu: f′ = gamma for x > 0, else gamma · alpha · exp(x) = y + gamma · alpha."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    alpha = number(node, "alpha", 1.67326319217681884765625)
    gamma = number(node, "gamma", 1.05070102214813232421875)
    slope = op.Where(op.Greater(x, op.like(0, x)), op.like(gamma, x), op.Add(y, op.like(gamma * alpha, x)))
    return [op.Mul(dy, slope)]


def thresholded(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """ThresholdedRelu: dx = dy where x > alpha."""
    x = node.inputs[0]
    assert x is not None
    return [op.Mul(dy, mask(op, op.Greater(x, op.like(number(node, "alpha", 1.0), x)), x))]


def shrink(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Shrink: dx = dy where |x| > lambd."""
    x = node.inputs[0]
    assert x is not None
    return [op.Mul(dy, mask(op, op.Greater(op.Abs(x), op.like(number(node, "lambd", 0.5), x)), x))]


def hard_sigmoid(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """HardSigmoid: f′ = alpha where 0 < y < 1, else 0."""
    y = node.outputs[0]
    inside = op.And(op.Greater(y, op.like(0, y)), op.Less(y, op.like(1, y)))
    return [op.Mul(dy, op.Mul(mask(op, inside, y), op.like(number(node, "alpha", 0.2), y)))]


def hard_swish(op: Backward, x: ir.Value, y: ir.Value) -> ir.Value:
    """HardSwish x · clip(x / 6 + ½, 0, 1): f′ = 0 for x ≤ −3, 1 for x ≥ 3, else x / 3 + ½ (bounds as PyTorch)."""
    middle = op.Add(op.Mul(x, op.like(1 / 3, x)), op.like(0.5, x))
    upper = op.Where(op.GreaterOrEqual(x, op.like(3, x)), op.like(1, x), middle)
    return op.Where(op.LessOrEqual(x, op.like(-3, x)), op.like(0, x), upper)


def sigmoid(op: Backward, x: ir.Value, y: ir.Value) -> ir.Value:
    """y · (1 − y)."""
    return op.Mul(y, op.Sub(op.like(1, y), y))


def tanh(op: Backward, x: ir.Value, y: ir.Value) -> ir.Value:
    """1 − y²."""
    return op.Sub(op.like(1, y), op.Mul(y, y))


def softsign(op: Backward, x: ir.Value, y: ir.Value) -> ir.Value:
    """y = x / (1 + |x|): f′ = (1 − |y|)²."""
    rest = op.Sub(op.like(1, y), op.Abs(y))
    return op.Mul(rest, rest)


def erf(op: Backward, x: ir.Value, y: ir.Value) -> ir.Value:
    """2 / √π · exp(−x²)."""
    return op.Mul(op.Exp(op.Neg(op.Mul(x, x))), op.like(2 / math.sqrt(math.pi), x))


def gelu(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Gelu x · Φ(x): f′ = Φ(x) + x · φ(x); with approximate="tanh", Φ is ½(1 + tanh(√(2/π)(x + 0.044715·x³)))."""
    x = node.inputs[0]
    assert x is not None
    one, half = op.like(1, x), op.like(0.5, x)
    if "approximate" in node.attributes and node.attributes["approximate"].as_string() == "tanh":
        c, square = math.sqrt(2 / math.pi), op.Mul(x, x)
        inner = op.Mul(op.Mul(x, op.Add(one, op.Mul(square, op.like(0.044715, x)))), op.like(c, x))
        t = op.Tanh(inner)
        slope = op.Mul(op.Add(one, op.Mul(square, op.like(3 * 0.044715, x))), op.like(c, x))
        bell = op.Mul(op.Mul(op.Sub(one, op.Mul(t, t)), slope), half)
        return [op.Mul(dy, op.Add(op.Mul(op.Add(one, t), half), op.Mul(x, bell)))]
    phi = op.Mul(op.Add(op.Erf(op.Mul(x, op.like(math.sqrt(0.5), x))), one), half)
    density = op.Mul(op.Exp(op.Mul(op.Mul(x, x), op.like(-0.5, x))), op.like(1 / math.sqrt(2 * math.pi), x))
    return [op.Mul(dy, op.Add(phi, op.Mul(x, density)))]


def mish(op: Backward, x: ir.Value, y: ir.Value) -> ir.Value:
    """Mish x · tanh(s), s = softplus(x): f′ = tanh(s) + x · σ(x) · (1 − tanh²(s))."""
    t = op.Tanh(op.Softplus(x))
    return op.Add(t, op.Mul(op.Mul(x, op.Sigmoid(x)), op.Sub(op.like(1, x), op.Mul(t, t))))


def softmax(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Softmax: dx = (dy − Σ dy·y) · y."""
    y = node.outputs[0]
    weighted = op.Mul(op.full(dy, y), y)
    return [op.Sub(weighted, op.Mul(op.sum(weighted, [axis_of(node, y)], keepdims=True), y))]


def log_softmax(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """LogSoftmax: dx = dy − exp(y) · Σ dy."""
    y = node.outputs[0]
    return [op.Sub(dy, op.Mul(op.Exp(y), op.sum(op.full(dy, y), [axis_of(node, y)], keepdims=True)))]


def axis_of(node: ir.Node, y: ir.Value, default: int = -1) -> int:
    """Return the axis attribute, counted from the front where the rank is known."""
    axis = integer(node, "axis", default)
    return axis % y.shape.rank() if y.shape is not None else axis


def hardmax(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Hardmax is a step function: nothing goes back."""
    return [None]


RULES = {
    "Celu": celu,
    "Elu": elu,
    "Erf": elementwise(erf),
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": elementwise(hard_swish),
    "Hardmax": hardmax,
    "LeakyRelu": leaky,
    "LogSoftmax": log_softmax,
    "Mish": elementwise(mish),
    "PRelu": prelu,
    "Relu": relu,
    "Selu": selu,
    "Shrink": shrink,
    "Sigmoid": elementwise(sigmoid),
    "Softmax": softmax,
    "Softplus": elementwise(lambda op, x, y: op.Sigmoid(x)),
    "Softsign": elementwise(softsign),
    "Tanh": elementwise(tanh),
    "ThresholdedRelu": thresholded,
}
