"""Normalizations by batch, instance, layer, neighbouring channels and norm; the other ones have function bodies."""

import math

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.stages.derive.backward import Backward, Gradients, Rules
from ortpipe.stages.derive.dimensions import ranked


def batch(op: Backward, node: Node, dy: Value, x: Value, s: Value, b: Value, mean: Value, variance: Value) -> Gradients:
    """BatchNormalization y = s·x̂ + b, x̂ = (x − μ)·r, r = 1/√(σ² + ε), per channel.

    Inference (μ and σ² are inputs): dx = dy·s·r, ds = Σ dy·x̂, db = Σ dy, dμ = −s·r·db, dσ² = −½·s·r²·ds.
    Training (μ and σ² are the batch's): dx = s·r·(dy − mean dy − x̂·mean(dy·x̂)). The running statistics are moved by
    the batch, not learned: no gradient goes through them, as PyTorch.
    """
    axes, training = [0, *range(2, ranked(x).rank())], node.attributes.get_int("training_mode", 0)
    centred = op.Sub(x, _mean(op, x, axes) if training else _channels(op, x, mean))
    if training:
        inverse = _inverse_root(op, node, _mean(op, op.Mul(centred, centred), axes))
    else:
        inverse = _channels(op, x, _inverse_root(op, node, variance))
    factor, db = op.Mul(_channels(op, x, s), inverse), op.sum(dy, axes, keepdims=True)
    ds = op.Mul(op.sum(op.Mul(dy, centred), axes, keepdims=True), inverse)
    if not training:
        d_variance = op.Mul(op.Mul(factor, inverse), op.Mul(ds, op.like(-0.5, x)))
        return [op.Mul(dy, factor), *(op.vector(v) for v in (ds, db, op.Neg(op.Mul(factor, db)), d_variance))]
    share = op.averaged(factor, x, db)
    # per channel dx = a·dy − b·(x − μ) − c: two products and two differences over x
    slope = op.Mul(op.Mul(share, inverse), ds)
    dx = op.Sub(op.Sub(op.Mul(dy, factor), op.Mul(centred, slope)), op.Mul(share, db))
    return [dx, op.vector(ds), op.vector(db)]


def instance(op: Backward, node: Node, dy: Value, x: Value, s: Value, b: Value) -> Gradients:
    """InstanceNormalization y = s·x̂ + b, per image and channel: dx = s·r·(dy − mean dy − x̂·mean(dy·x̂))."""
    axes = list(range(2, ranked(x).rank()))
    normal, inverse = _standard(op, node, x, axes)
    plain, along = op.sum(dy, axes, keepdims=True), op.sum(op.Mul(dy, normal), axes, keepdims=True)
    inner = op.Sub(op.Sub(dy, op.averaged(plain, x, plain)), op.Mul(normal, op.averaged(along, x, plain)))
    dx = op.Mul(inner, op.Mul(_channels(op, x, s), inverse))
    return [dx, *(op.vector(op.sum(v, [0], keepdims=True)) for v in (along, plain))]


def layer(op: Backward, node: Node, dys: Gradients, x: Value, s: Value, b: Value | None = None) -> Gradients:
    """LayerNormalization y = s·x̂ + b over the last axes: dx = r·(g − mean g − x̂·mean(g·x̂)), g = dy·s.

    ds = Σ dy·x̂ and db = Σ dy over the first axes. What reaches the outputs Mean and InvStdDev joins dx by
    ∂μ/∂x = 1/n and ∂r/∂x = −r²·x̂/n. A float32 forward hands over its own μ and r: they are not computed again.
    """
    dy, d_mean, d_inverse = (*dys, None, None)[:3]
    axes = list(range(op.axis(node, x), ranked(x).rank()))
    if x.dtype == ir.DataType.FLOAT:
        statistic = Value(type=x.type, shape=ir.Shape([1 if i in axes else d for i, d in enumerate(ranked(x))]))
        mu, inverse = (op.output(node, i, name, statistic) for i, name in ((1, "mean"), (2, "inverse")))
        normal = op.Mul(op.Sub(x, mu), inverse)
    else:
        normal, inverse = _standard(op, node, x, axes)
    parts, ds, db = [], None, None
    if dy is not None:
        g = op.Mul(dy, s)
        spread = op.Add(_mean(op, g, axes), op.Mul(normal, _mean(op, op.Mul(g, normal), axes)))
        parts.append(op.Mul(op.Sub(g, spread), inverse))
        ds, db = _rows(op, op.Mul(dy, normal), s, len(axes)), _rows(op, dy, s, len(axes)) if b is not None else None
    if d_mean is not None:
        parts.append(op.averaged(d_mean, x, inverse))
    if d_inverse is not None:
        moved = op.averaged(op.Mul(d_inverse, op.Mul(inverse, inverse)), x, inverse)
        parts.append(op.Mul(normal, op.Neg(moved)))
    return [op.total(parts, x), ds, db]


def _rows(op: Backward, value: Value, like: Value, width: int) -> Value:
    """Return a value summed over all but its last axes; as rows of a matrix where their size is known."""
    shape = ranked(value)
    last = [d for d in shape[shape.rank() - width :] if isinstance(d, int)]
    if like.shape is None or list(like.shape) != last or width == shape.rank():
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
    # an average over `size` channels that counts the pads is the sum over size
    mean = _neighbours(op, x, op.Mul(x, x), size, before, after)
    q = op.Add(op.Mul(mean, op.like(alpha, x)), op.like(bias, x))
    direct = op.Mul(dy, op.Pow(q, op.like(-beta, x)))
    back = _neighbours(op, x, op.Div(op.Mul(direct, x), q), size, after, before)
    return [op.Sub(direct, op.Mul(op.Mul(x, back), op.like(2 * alpha * beta, x)))]


def _neighbours(op: Backward, x: Value, value: Value, size: int, before: int, after: int) -> Value:
    """Return the average over `size` neighbouring channels, places before the first and after the last being 0."""
    n = ranked(x).rank() - 2
    pads = [before, *[0] * n, after, *[0] * n]
    rows = op.Unsqueeze(value, op.ints([1]))
    average = op.AveragePool(rows, kernel_shape=[size, *[1] * n], pads=pads, count_include_pad=1)
    average = op.Squeeze(average, op.ints([1]))
    average.shape = x.shape
    return average


def lp(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LpNormalization y = x/n, n = (Σ |x|ᵖ)^(1/p): dx = (dy − t·Σ dy·y)/n, t = y for p = 2, sign(x) for p = 1.

    Where n = 0, y is 0 and nothing goes back.
    """
    y, zero = node.outputs[0], op.like(0, x)
    axes = [op.axis(node, y)]
    if node.attributes.get_int("p", 2) == 1:
        direction, norm = op.Sign(x), op.sum(op.Abs(x), axes, keepdims=True)
    else:
        direction, norm = y, op.Sqrt(op.sum(op.Mul(x, x), axes, keepdims=True))
    empty = op.Equal(norm, zero)
    inverse = op.Where(empty, zero, op.Reciprocal(op.Where(empty, op.like(1, x), norm)))
    return [op.Mul(op.Sub(dy, op.Mul(direction, op.sum(op.Mul(dy, y), axes, keepdims=True))), inverse)]


def mean_variance(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """MeanVarianceNormalization y = (x − μ)/(σ + 1e-9): dx = (dy − mean dy − y·mean(dy·y))/(σ + 1e-9).

    A rule keeps the forward's one kernel, and its body's σ² = E[x²] − E[x]² loses digits.
    """
    y, rank = node.outputs[0], ranked(x).rank()
    axes = sorted(a % rank for a in node.attributes.get_ints("axes", (0, 2, 3)))
    centred = op.Sub(x, _mean(op, x, axes))
    deviation = op.Add(op.Sqrt(_mean(op, op.Mul(centred, centred), axes)), op.like(1e-9, x))
    inner = op.Sub(op.Sub(dy, _mean(op, dy, axes)), op.Mul(y, _mean(op, op.Mul(dy, y), axes)))
    return [op.Div(inner, deviation)]


def _standard(op: Backward, node: Node, x: Value, axes: list[int]) -> tuple[Value, Value]:
    """Return x̂ and r = 1/√(σ² + ε), computed over the axes."""
    centred = op.Sub(x, _mean(op, x, axes))
    inverse = _inverse_root(op, node, _mean(op, op.Mul(centred, centred), axes))
    return op.Mul(centred, inverse), inverse


def _inverse_root(op: Backward, node: Node, variance: Value) -> Value:
    epsilon = op.like(node.attributes.get_float("epsilon", 1e-5), variance)
    return op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))


def _mean(op: Backward, x: Value, axes: list[int]) -> Value:
    total = op.sum(x, axes, keepdims=True)
    return op.averaged(total, x, total)


def _channels(op: Backward, x: Value, vector: Value) -> Value:
    """Return a value per channel as (C, 1, …, 1)."""
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
