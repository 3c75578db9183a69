"""Normalization by batch, instance, layer, neighbouring channels and norm; the others have function bodies."""

import math

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked


def batch(op: Backward, node: Node, dy: Value, x: Value, s: Value, b: Value, mean: Value, variance: Value) -> Gradients:
    """BatchNormalization y = s·x̂ + b, x̂ = (x − μ)·r, r = 1/√(σ² + ε), per channel.

    Inference (μ and σ² are inputs): dx = dy·s·r, ds = Σ dy·x̂, db = Σ dy, dμ = −s·r·db, dσ² = −½·s·r²·ds.
    Training (μ and σ² are the batch's): dx = s·r·(dy − mean dy − x̂·mean(dy·x̂)). The batch updates the running
    statistics; they are not learned and no gradient passes through them, as in PyTorch.
    """
    axes, training = [0, *range(2, ranked(x).rank())], node.attributes.get_int("training_mode", 0)
    centred = x - (_mean(op, x, axes) if training else _channels(op, x, mean))
    if training:
        inverse = _inverse_root(op, node, _mean(op, centred * centred, axes))
    else:
        inverse = _channels(op, x, _inverse_root(op, node, variance))
    factor, db = _channels(op, x, s) * inverse, op.sum(dy, axes, keepdims=True)
    ds = op.sum(dy * centred, axes, keepdims=True) * inverse
    if not training:
        d_variance = factor * inverse * (ds * -0.5)
        return [dy * factor, *(op.vector(v) for v in (ds, db, -(factor * db), d_variance))]
    share = op.averaged(factor, x, db)
    # per channel dx = a·dy − b·(x − μ) − c: two products and two differences over x
    return [dy * factor - centred * (share * inverse * ds) - share * db, op.vector(ds), op.vector(db)]


def instance(op: Backward, node: Node, dy: Value, x: Value, s: Value, b: Value) -> Gradients:
    """InstanceNormalization y = s·x̂ + b, per image and channel: dx = s·r·(dy − mean dy − x̂·mean(dy·x̂))."""
    axes = list(range(2, ranked(x).rank()))
    normal, inverse = _standard(op, node, x, axes)
    plain, along = (op.sum(v, axes, keepdims=True) for v in (dy, dy * normal))
    inner = dy - op.averaged(plain, x, plain) - normal * op.averaged(along, x, plain)
    return [
        inner * (_channels(op, x, s) * inverse),
        *(op.vector(op.sum(v, [0], keepdims=True)) for v in (along, plain)),
    ]


def layer(op: Backward, node: Node, dys: Gradients, x: Value, s: Value, b: Value | None = None) -> Gradients:
    """LayerNormalization y = s·x̂ + b over the last axes: dx = r·(g − mean g − x̂·mean(g·x̂)), g = dy·s.

    ds = Σ dy·x̂ and db = Σ dy over the first axes. Gradients of the outputs Mean and InvStdDev are added to dx by
    ∂μ/∂x = 1/n and ∂r/∂x = −r²·x̂/n. A float32 forward returns μ and r, so that they are not recomputed.
    """
    dy, d_mean, d_inverse = (*dys, None, None)[:3]
    axes = list(range(op.axis(node, x), ranked(x).rank()))
    if x.dtype == ir.DataType.FLOAT:
        statistic = Value(type=x.type, shape=ir.Shape([1 if i in axes else d for i, d in enumerate(ranked(x))]))
        mu, inverse = (op.output(node, i, name, statistic) for i, name in ((1, "mean"), (2, "inverse")))
        normal = (x - mu) * inverse
    else:
        normal, inverse = _standard(op, node, x, axes)
    parts, ds, db = [], None, None
    if dy is not None:
        g = dy * s
        spread = _mean(op, g, axes) + normal * _mean(op, g * normal, axes)
        parts.append((g - spread) * inverse)
        ds, db = _rows(op, dy * normal, s, len(axes)), None if b is None else _rows(op, dy, b, len(axes))
    if d_mean is not None:
        parts.append(op.averaged(d_mean, x, inverse))
    if d_inverse is not None:
        moved = op.averaged(d_inverse * (inverse * inverse), x, inverse)
        parts.append(normal * -moved)
    return [op.total(parts, x), ds, db]


def _rows(op: Backward, value: Value, like: Value, width: int) -> Value:
    """Return a value summed over all but its last axes, as the rows of a matrix if their size is known."""
    shape = ranked(value)
    last = [d for d in shape[shape.rank() - width :] if isinstance(d, int)]
    if like.shape is None or len(last) < width or list(like.shape) != last or width == shape.rank():
        return value  # the walk sums it
    if width == 1 and shape.rank() == 2:
        return op.sum(value, [0])
    summed = op.sum(op.reshape(value, [-1, math.prod(last)], [None, math.prod(last)]), [0])
    return op.reshape(summed, last) if width > 1 else summed


def local_response(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LRN y = x·q^(−β), q = bias + α/size · Σ x² over neighbouring channels.

    dx = dy·q^(−β) − 2·α·β/size · x · Σ dy·y/q over the channels that have x as a neighbour.
    """
    size, beta = node.attributes["size"].as_int(), node.attributes.get_float("beta", 0.75)
    alpha, bias = node.attributes.get_float("alpha", 1e-4), node.attributes.get_float("bias", 1.0)
    before, after = (size - 1) // 2, size // 2
    # the average over `size` channels, including zeros, is the sum divided by size
    q = _neighbours(op, x, x * x, size, before, after) * alpha + bias
    direct = dy * op.Pow(q, -beta)
    back = _neighbours(op, x, direct * x / q, size, after, before)
    return [direct - x * back * (2 * alpha * beta)]


def _neighbours(op: Backward, x: Value, value: Value, size: int, before: int, after: int) -> Value:
    """Return the average over `size` neighbouring channels; channels before the first and after the last are 0."""
    n = ranked(x).rank() - 2
    # Pad with explicit zeros that are not directly before the pool, which would absorb them as pads: from opset 19 on,
    # onnxruntime 1.23.2 then crops the windows of the first axis by a pad of the second if it counts pads.
    padded = op.Pad(value, op.const([0, before, *[0] * (n + 1), after, *[0] * n]))
    average = op.Squeeze(op.AveragePool(op.Unsqueeze(padded, [1]), kernel_shape=[size] + [1] * n), [1])
    average.shape = x.shape
    return average


def lp(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LpNormalization y = x/n, n = (Σ |x|ᵖ)^(1/p): dx = (dy − t·Σ dy·y)/n, t = y for p = 2, sign(x) for p = 1.

    If n = 0, y is 0 and no gradient is returned.
    """
    y = node.outputs[0]
    axes = [op.axis(node, y)]
    if node.attributes.get_int("p", 2) == 1:
        direction, norm = op.Sign(x), op.sum(op.Abs(x), axes, keepdims=True)
    else:
        direction, norm = y, op.Sqrt(op.sum(x * x, axes, keepdims=True))
    empty = op.Equal(norm, 0)
    inverse = op.Where(empty, 0, op.Reciprocal(op.Where(empty, 1, norm)))
    return [(dy - direction * op.sum(dy * y, axes, keepdims=True)) * inverse]


def mean_variance(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """MeanVarianceNormalization y = (x − μ)/(σ + 1e-9): dx = (dy − mean dy − y·mean(dy·y))/(σ + 1e-9).

    The rule keeps the forward's single kernel; the function body's σ² = E[x²] − E[x]² loses digits.
    """
    y, rank = node.outputs[0], ranked(x).rank()
    axes = sorted(a % rank for a in node.attributes.get_ints("axes", (0, 2, 3)))
    centred = x - _mean(op, x, axes)
    deviation = op.Sqrt(_mean(op, centred * centred, axes)) + 1e-09
    inner = dy - _mean(op, dy, axes) - y * _mean(op, dy * y, axes)
    return [inner / deviation]


def _standard(op: Backward, node: Node, x: Value, axes: list[int]) -> tuple[Value, Value]:
    """Return x̂ and r = 1/√(σ² + ε) over the axes."""
    centred = x - _mean(op, x, axes)
    inverse = _inverse_root(op, node, _mean(op, centred * centred, axes))
    return centred * inverse, inverse


def _inverse_root(op: Backward, node: Node, variance: Value) -> Value:
    return op.Reciprocal(op.Sqrt(variance + node.attributes.get_float("epsilon", 1e-5)))


def _mean(op: Backward, x: Value, axes: list[int]) -> Value:
    total = op.sum(x, axes, keepdims=True)
    return op.averaged(total, x, total)


def _channels(op: Backward, x: Value, vector: Value) -> Value:
    """Return a per-channel vector as (C, 1, …, 1)."""
    shape = ranked(x)
    n = shape.rank() - 2
    return op.reshape(vector, [-1] + [1] * n, [shape[1]] + [1] * n) if n else vector


RULES: Rules = {
    "BatchNormalization": batch,
    "InstanceNormalization": instance,
    "LRN": local_response,
    "LayerNormalization": layer,
    "LpNormalization": lp,
    "MeanVarianceNormalization": mean_variance,
}
