"""Normalizations by batch, instance, layer, neighbouring channels and norm; the other ones have function bodies."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients, ranked
from ortpipe.stages.derive.rules.activations import axis_of, integer, number
from ortpipe.stages.derive.rules.windows import ints


def batch(op: Backward, node: ir.Node, dy: ir.Value | None, *_: ir.Value | None) -> Gradients:
    """BatchNormalization y = s·x̂ + b, x̂ = (x − μ)·r, r = 1/√(σ² + ε), per channel.

    Inference (μ and σ² are inputs): dx = dy·s·r, ds = Σ dy·x̂, db = Σ dy, dμ = −s·r·db, dσ² = −½·s·r²·ds.
    Training (μ and σ² are the batch's): dx = s·r·(dy − mean dy − x̂·mean(dy·x̂)). The running statistics are moved by
    the batch, not learned: no gradient goes through them, as PyTorch.
    """
    x, s, mean, variance = (node.inputs[i] for i in (0, 1, 3, 4))
    assert x is not None and s is not None and mean is not None and variance is not None
    if dy is None:
        return [None] * 5
    axes = [0, *range(2, ranked(x).rank())]
    dy = op.full(dy, node.outputs[0])
    training = bool(integer(node, "training_mode", 0))
    if training:
        mu = _mean(op, x, axes)
        centred = op.Sub(x, mu)
        inverse = _inverse_root(op, node, _mean(op, op.Mul(centred, centred), axes))
    else:
        centred = op.Sub(x, _channels(op, x, mean))
        inverse = _channels(op, x, _inverse_root(op, node, variance))
    factor = op.Mul(_channels(op, x, s), inverse)
    db = op.sum(dy, axes, keepdims=True)
    ds = op.Mul(op.sum(op.Mul(dy, centred), axes, keepdims=True), inverse)
    flat = [_flat(op, v, s) for v in (ds, db)]
    if not training:
        d_mean = op.Neg(_flat(op, op.Mul(factor, db), s))
        half = op.Mul(op.Mul(factor, inverse), op.Mul(ds, op.like(-0.5, x)))
        return [op.Mul(dy, factor), *flat, d_mean, _flat(op, half, s)]
    share = op.averaged(factor, x, db)
    # per channel dx = a·dy − b·(x − μ) − c: two products and two differences over x
    slope = op.Mul(op.Mul(share, inverse), ds)
    dx = op.Sub(op.Sub(op.Mul(dy, factor), op.Mul(centred, slope)), op.Mul(share, db))
    return [dx, *flat, None, None]


def instance(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """InstanceNormalization y = s·x̂ + b, per image and channel: dx = s·r·(dy − mean dy − x̂·mean(dy·x̂))."""
    x, s, _ = node.inputs
    assert x is not None and s is not None
    axes = list(range(2, ranked(x).rank()))
    dy = op.full(dy, node.outputs[0])
    normal, inverse = _standard(op, node, x, axes)
    plain, along = op.sum(dy, axes, keepdims=True), op.sum(op.Mul(dy, normal), axes, keepdims=True)
    inner = op.Sub(op.Sub(dy, op.averaged(plain, x, plain)), op.Mul(normal, op.averaged(along, x, plain)))
    dx = op.Mul(inner, op.Mul(_channels(op, x, s), inverse))
    ds, db = (_flat(op, op.sum(v, [0], keepdims=True), s) for v in (along, plain))
    return [dx, ds, db]


def layer(
    op: Backward,
    node: ir.Node,
    dy: ir.Value | None,
    d_mean: ir.Value | None = None,
    d_inverse: ir.Value | None = None,
) -> Gradients:
    """LayerNormalization y = s·x̂ + b over the last axes: dx = r·(g − mean g − x̂·mean(g·x̂)), g = dy·s.

    ds = Σ dy·x̂ and db = Σ dy over the first axes. What reaches the outputs Mean and InvStdDev joins dx by
    ∂μ/∂x = 1/n and ∂r/∂x = −r²·x̂/n. A float32 forward hands over its own μ and r: they are not computed again.
    """
    x, s, b = (*node.inputs, None)[:3]
    assert x is not None and s is not None
    rank = ranked(x).rank()
    axes = list(range(axis_of(node, x), rank))
    if x.dtype == ir.DataType.FLOAT:
        mu, inverse = _saved(op, node, x, axes)
        normal = op.Mul(op.Sub(x, mu), inverse)
    else:
        normal, inverse = _standard(op, node, x, axes)
    dx, ds, db = None, None, None
    if dy is not None:
        dy = op.full(dy, node.outputs[0])
        g = op.Mul(dy, s)
        spread = op.Add(_mean(op, g, axes), op.Mul(normal, _mean(op, op.Mul(g, normal), axes)))
        dx = op.Mul(op.Sub(g, spread), inverse)
        ds, db = _rows(op, op.Mul(dy, normal), s, len(axes)), _rows(op, dy, b if b is not None else s, len(axes))
    if d_mean is not None:
        share = op.averaged(d_mean, x, inverse)
        dx = share if dx is None else op.Add(dx, share)
    if d_inverse is not None:
        share = op.Mul(normal, op.Neg(op.averaged(op.Mul(d_inverse, op.Mul(inverse, inverse)), x, inverse)))
        dx = share if dx is None else op.Add(dx, share)
    return [dx, ds, db if b is not None else None][: len(node.inputs)]


def _saved(op: Backward, node: ir.Node, x: ir.Value, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    """Return the outputs Mean and InvStdDev, asking the forward node for them where it had not been."""
    if len(node.outputs) < 3 or not all(y.name for y in node.outputs):
        node.resize_outputs(3)
        for y, name in zip(node.outputs[1:], ("mean", "inverse"), strict=True):
            y.name = y.name or op.fresh(f"{node.outputs[0].name}/{name}")
    for y in node.outputs[1:]:
        y.type = ir.TensorType(ir.DataType.FLOAT)
        y.shape = ir.Shape([1 if i in axes else d for i, d in enumerate(ranked(x))])
    return node.outputs[1], node.outputs[2]


def _rows(op: Backward, value: ir.Value, like: ir.Value, width: int) -> ir.Value:
    """Return a value summed over all but its last axes; as rows of a matrix where their size is known."""
    shape, own = ranked(value), like.shape
    last = list(shape)[shape.rank() - width :]
    if own is None or list(own) != last or not all(isinstance(d, int) for d in last) or width == shape.rank():
        return value  # the walk sums it
    if width == 1 and shape.rank() == 2:
        return op.sum(value, [0])
    size = 1
    for d in last:
        size *= int(d)  # type: ignore[arg-type]
    summed = op.sum(op.reshape(value, [-1, size], [None, size]), [0])
    return op.reshape(summed, [int(d) for d in last]) if width > 1 else summed  # type: ignore[arg-type]


def local_response(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """LRN y = x·q^(−β), q = bias + α/size · Σ x² over neighbouring channels.

    dx = dy·q^(−β) − 2·α·β/size · x · Σ dy·y/q over the channels that have x as a neighbour.
    """
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    size, beta = integer(node, "size", 1), number(node, "beta", 0.75)
    alpha, bias = number(node, "alpha", 1e-4), number(node, "bias", 1.0)
    dy, before = op.full(dy, y), (size - 1) // 2
    after = size - 1 - before
    # an average over `size` channels that counts the pads is the sum over size
    mean = _neighbours(op, x, op.Mul(x, x), size, before, after)
    q = op.Add(op.Mul(mean, op.like(alpha, x)), op.like(bias, x))
    direct = op.Mul(dy, op.Pow(q, op.like(-beta, x)))
    back = _neighbours(op, x, op.Div(op.Mul(direct, x), q), size, after, before)
    return [op.Sub(direct, op.Mul(op.Mul(x, back), op.like(2 * alpha * beta, x)))]


def _neighbours(op: Backward, x: ir.Value, value: ir.Value, size: int, before: int, after: int) -> ir.Value:
    """Return the average over `size` neighbouring channels, places before the first and after the last being 0."""
    n = ranked(x).rank() - 2
    pads = [before, *[0] * n, after, *[0] * n]
    rows = op.Unsqueeze(value, op.ints([1]))
    made = op.AveragePool(rows, kernel_shape=[size, *[1] * n], pads=pads, count_include_pad=1)
    made = op.Squeeze(made, op.ints([1]))
    made.type, made.shape = x.type, x.shape
    return made


def lp(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """LpNormalization y = x/n, n = (Σ |x|ᵖ)^(1/p): dx = (dy − t·Σ dy·y)/n, t = y for p = 2, sign(x) for p = 1.

    Where n = 0, y is 0 and nothing goes back.
    """
    x, y, p = node.inputs[0], node.outputs[0], integer(node, "p", 2)
    assert x is not None
    axes, zero = [axis_of(node, y)], op.like(0, x)
    dy = op.full(dy, y)
    if p == 1:
        direction, norm = op.Sign(x), op.sum(op.Abs(x), axes, keepdims=True)
    else:
        direction, norm = y, op.Sqrt(op.sum(op.Mul(x, x), axes, keepdims=True))
    empty = op.Equal(norm, zero)
    inverse = op.Where(empty, zero, op.Reciprocal(op.Where(empty, op.like(1, x), norm)))
    return [op.Mul(op.Sub(dy, op.Mul(direction, op.sum(op.Mul(dy, y), axes, keepdims=True))), inverse)]


def mean_variance(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """MeanVarianceNormalization y = (x − μ)/(σ + 1e-9): dx = (dy − mean dy − y·mean(dy·y))/(σ + 1e-9).

    A rule keeps the forward's one kernel, and its body's σ² = E[x²] − E[x]² loses digits.
    """
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    rank = ranked(x).rank()
    axes = sorted(a % rank for a in ints(node, "axes", (0, 2, 3)))
    dy, centred = op.full(dy, y), op.Sub(x, _mean(op, x, axes))
    deviation = op.Add(op.Sqrt(_mean(op, op.Mul(centred, centred), axes)), op.like(1e-9, x))
    inner = op.Sub(op.Sub(dy, _mean(op, dy, axes)), op.Mul(y, _mean(op, op.Mul(dy, y), axes)))
    return [op.Div(inner, deviation)]


def _standard(op: Backward, node: ir.Node, x: ir.Value, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    """Return x̂ and r = 1/√(σ² + ε), computed over the axes."""
    centred = op.Sub(x, _mean(op, x, axes))
    inverse = _inverse_root(op, node, _mean(op, op.Mul(centred, centred), axes))
    return op.Mul(centred, inverse), inverse


def _inverse_root(op: Backward, node: ir.Node, variance: ir.Value) -> ir.Value:
    return op.Reciprocal(op.Sqrt(op.Add(variance, op.like(number(node, "epsilon", 1e-5), variance))))


def _mean(op: Backward, x: ir.Value, axes: list[int]) -> ir.Value:
    total = op.sum(x, axes, keepdims=True)
    return op.averaged(total, x, total)


def _channels(op: Backward, x: ir.Value, vector: ir.Value) -> ir.Value:
    """Return a value per channel as (C, 1, …, 1)."""
    shape = ranked(x)
    n = shape.rank() - 2
    return op.reshape(vector, [-1] + [1] * n, [shape[1]] + [1] * n) if n else vector


def _flat(op: Backward, value: ir.Value, vector: ir.Value) -> ir.Value:
    """Return a value of shape (1, C, 1, …) as a vector."""
    made = op.Reshape(value, op.ints([-1]))
    made.type, made.shape = vector.type, vector.shape
    return made


RULES: dict[str, Callable[..., Gradients]] = {
    "BatchNormalization": batch,
    "InstanceNormalization": instance,
    "LRN": local_response,
    "LayerNormalization": layer,
    "LpNormalization": lp,
    "MeanVarianceNormalization": mean_variance,
}
