"""Activation functions, and the softmax family."""

import math

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.stages.derive.backward import Backward, Gradients, Rules
from ortpipe.stages.derive.rules.arithmetic import elementwise, flat


def relu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """y = max(x, 0): dx = dy · [y > 0]; 0 at 0, as PyTorch.

    In float32 [y > 0] is min(1, y · 3.4e38), which is one kernel and 0 or 1 for every y that is not subnormal;
    comparing and casting takes three times as long.
    """
    y = node.outputs[0]
    if y.dtype == ir.DataType.FLOAT:
        return [op.Mul(dy, op.HardSigmoid(y, alpha=float(np.finfo(np.float32).max), beta=0.0))]
    return [op.Mul(dy, op.cast(op.Greater(y, op.like(0, y)), y))]


def leaky(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LeakyRelu: dx = dy for x > 0, else alpha · dy (also at 0, as PyTorch)."""
    alpha = op.like(node.attributes.get_float("alpha", 0.01), x)
    return [op.Where(op.Greater(x, op.like(0, x)), dy, op.Mul(dy, alpha))]


def prelu(op: Backward, node: Node, dy: Value, x: Value, slope: Value) -> Gradients:
    """PRelu: dx = dy for x > 0, else slope · dy; dslope = dy · min(x, 0)."""
    positive = op.Greater(x, op.like(0, x))
    return [op.Where(positive, dy, op.Mul(dy, slope)), op.Where(positive, op.like(0, x), op.Mul(dy, x))]


def elu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Elu: f′ = 1 for x > 0, else alpha · exp(x) = y + alpha."""
    alpha = op.like(node.attributes.get_float("alpha", 1.0), x)
    return [op.Where(op.Greater(x, op.like(0, x)), dy, op.Mul(dy, op.Add(node.outputs[0], alpha)))]


def celu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Celu: f′ = 1 for x > 0, else exp(x / alpha)."""
    zero, alpha = op.like(0, x), op.like(node.attributes.get_float("alpha", 1.0), x)
    return [op.Mul(dy, op.Exp(op.Div(op.Min(x, zero), alpha)))]


def selu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Selu: f′ = gamma for x > 0, else gamma · alpha · exp(x) = y + gamma · alpha."""
    alpha = node.attributes.get_float("alpha", 1.67326319217681884765625)
    gamma = node.attributes.get_float("gamma", 1.05070102214813232421875)
    below = op.Add(node.outputs[0], op.like(gamma * alpha, x))
    return [op.Mul(dy, op.Where(op.Greater(x, op.like(0, x)), op.like(gamma, x), below))]


def thresholded(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """ThresholdedRelu: dx = dy where x > alpha."""
    return [op.Mul(dy, op.cast(op.Greater(x, op.like(node.attributes.get_float("alpha", 1.0), x)), x))]


def shrink(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Shrink: dx = dy where |x| > lambd."""
    return [op.Mul(dy, op.cast(op.Greater(op.Abs(x), op.like(node.attributes.get_float("lambd", 0.5), x)), x))]


def hard_sigmoid(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """HardSigmoid: f′ = alpha where 0 < y < 1, else 0."""
    y, alpha = node.outputs[0], node.attributes.get_float("alpha", 0.2)
    inside = op.And(op.Greater(y, op.like(0, y)), op.Less(y, op.like(1, y)))
    return [op.Mul(dy, op.Mul(op.cast(inside, y), op.like(alpha, y)))]


def hard_swish(op: Backward, x: Value, y: Value) -> Value:
    """HardSwish x · clip(x / 6 + ½, 0, 1): f′ = 0 for x ≤ −3, 1 for x ≥ 3, else x / 3 + ½ (bounds as PyTorch)."""
    middle = op.Add(op.Mul(x, op.like(1 / 3, x)), op.like(0.5, x))
    upper = op.Where(op.GreaterOrEqual(x, op.like(3, x)), op.like(1, x), middle)
    return op.Where(op.LessOrEqual(x, op.like(-3, x)), op.like(0, x), upper)


def softsign(op: Backward, x: Value, y: Value) -> Value:
    """y = x / (1 + |x|): f′ = (1 − |y|)²."""
    rest = op.Sub(op.like(1, y), op.Abs(y))
    return op.Mul(rest, rest)


def gelu(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Gelu x · Φ(x): f′ = Φ(x) + x · φ(x); with approximate="tanh", Φ is ½(1 + tanh(√(2/π)(x + 0.044715·x³)))."""
    one, half = op.like(1, x), op.like(0.5, x)
    if node.attributes.get_string("approximate", "none") == "tanh":
        c, square = math.sqrt(2 / math.pi), op.Mul(x, x)
        t = op.Tanh(op.Mul(op.Mul(x, op.Add(one, op.Mul(square, op.like(0.044715, x)))), op.like(c, x)))
        slope = op.Mul(op.Add(one, op.Mul(square, op.like(3 * 0.044715, x))), op.like(c, x))
        bell = op.Mul(op.Mul(op.Sub(one, op.Mul(t, t)), slope), half)
        return [op.Mul(dy, op.Add(op.Mul(op.Add(one, t), half), op.Mul(x, bell)))]
    phi = op.Mul(op.Add(op.Erf(op.Mul(x, op.like(math.sqrt(0.5), x))), one), half)
    density = op.Mul(op.Exp(op.Mul(op.Mul(x, x), op.like(-0.5, x))), op.like(1 / math.sqrt(2 * math.pi), x))
    return [op.Mul(dy, op.Add(phi, op.Mul(x, density)))]


def mish(op: Backward, x: Value, y: Value) -> Value:
    """Mish x · tanh(s), s = softplus(x): f′ = tanh(s) + x · σ(x) · (1 − tanh²(s))."""
    t = op.Tanh(op.Softplus(x))
    return op.Add(t, op.Mul(op.Mul(x, op.Sigmoid(x)), op.Sub(op.like(1, x), op.Mul(t, t))))


def softmax(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Softmax: dx = (dy − Σ dy·y) · y."""
    y = node.outputs[0]
    weighted = op.Mul(dy, y)
    return [op.Sub(weighted, op.Mul(op.sum(weighted, [op.axis(node, y)], keepdims=True), y))]


def log_softmax(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LogSoftmax: dx = dy − exp(y) · Σ dy."""
    y = node.outputs[0]
    return [op.Sub(dy, op.Mul(op.Exp(y), op.sum(dy, [op.axis(node, y)], keepdims=True)))]


RULES: Rules = {
    "Celu": celu,
    "Elu": elu,
    "Erf": elementwise(lambda op, x, y: op.Mul(op.Exp(op.Neg(op.Mul(x, x))), op.like(2 / math.sqrt(math.pi), x))),
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": elementwise(hard_swish),
    "Hardmax": flat,
    "LeakyRelu": leaky,
    "LogSoftmax": log_softmax,
    "Mish": elementwise(mish),
    "PRelu": prelu,
    "Relu": relu,
    "Selu": selu,
    "Shrink": shrink,
    "Sigmoid": elementwise(lambda op, x, y: op.Mul(y, op.Sub(op.like(1, y), y))),
    "Softmax": softmax,
    "Softplus": elementwise(lambda op, x, y: op.Sigmoid(x)),
    "Softsign": elementwise(softsign),
    "Tanh": elementwise(lambda op, x, y: op.Sub(op.like(1, y), op.Mul(y, y))),
    "ThresholdedRelu": thresholded,
}
