"""What the training build cannot differentiate, or does wrong, written in operators that it does right.

A rule gets a builder and the node, and returns the values of the node's outputs; None leaves the node as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish
from ortpipe.stages.derive.expand import with_bodies
from ortpipe.stages.derive.rules import windows
from ortpipe.stages.derive.rules.pooling import along, membership

BODIES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")  # written out as ONNX defines them
Rule = Callable[[Builder, ir.Node], list[ir.Value] | None]


def rewrite(model: onnx.ModelProto, loss: str, sources: Sequence[str]) -> onnx.ModelProto:
    """Return the model with every node between the sources and the loss that has a rule rewritten; names stay."""
    own = ir.from_proto(with_bodies(model, BODIES))
    for node in between(own.graph, loss, sources):
        rule = RULES.get(node.op_type) if node.domain == "" else None
        made = rule(Builder(own.graph, node.op_type, before=node), node) if rule is not None else None
        if made is None:
            continue
        for old, new in zip(node.outputs, made, strict=False):
            new.type, new.shape = old.type, old.shape
            name = old.name
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            old.name, new.name = f"{name}/replaced", name
        own.graph.remove(node, safe=True)
    return finish(own)


def between(graph: ir.Graph, loss: str, sources: Sequence[str]) -> list[ir.Node]:
    """Return the nodes that a gradient goes through: every value on the way from a source to the loss is a float."""
    reached, needed = {query.value(graph, name) for name in sources}, {query.value(graph, loss)}
    forward = []
    for node in graph:
        if any(v in reached for v in _read(node)):
            reached.update(o for o in node.outputs if _is_float(o))
            forward.append(node)
    found = []
    for node in reversed(forward):
        if any(o in needed and o in reached for o in node.outputs):
            needed.update(v for v in _read(node) if _is_float(v))
            found.append(node)
    return found[::-1]


def _read(node: ir.Node) -> list[ir.Value]:
    return [v for v in (*node.inputs, *query.captured(node)) if v is not None]


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype in query.FLOATS


# --- activations and functions of one value


def elu(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x, or α·(eˣ − 1) below 0."""
    x = _x(node)
    return [_two_sided(op, x, x, _times(op, _number(node, "alpha", 1.0), _expm1(op, x)))]


def celu(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x, or α·(eˣᐟᵅ − 1) below 0."""
    x, alpha = _x(node), _number(node, "alpha", 1.0)
    return [_two_sided(op, x, x, _times(op, alpha, _expm1(op, x, 1 / alpha)))]


def selu(op: Builder, node: ir.Node) -> list[ir.Value]:
    """γ·x, or γ·α·(eˣ − 1) below 0."""
    x, gamma = _x(node), _number(node, "gamma", 1.0507009873554805)
    alpha = _number(node, "alpha", 1.6732632423543772)
    return [_two_sided(op, x, _times(op, gamma, x), _times(op, gamma * alpha, _expm1(op, x)))]


def thresholded_relu(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x above α, else 0."""
    x = _x(node)
    return [op.Where(op.Greater(x, op.like(_number(node, "alpha", 1.0), x)), x, op.like(0, x))]


def softplus(op: Builder, node: ir.Node) -> list[ir.Value]:
    """log(1 + eˣ) = m + log(e⁻ᵐ + eˣ⁻ᵐ) with m = max(x, 0), which overflows nowhere."""
    return [_softplus(op, _x(node))]


def mish(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x · tanh(log(1 + eˣ))."""
    return [op.Mul(_x(node), op.Tanh(_softplus(op, _x(node))))]


def softsign(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x / (1 + |x|)."""
    x = _x(node)
    return [op.Div(x, op.Add(op.like(1, x), op.Abs(x)))]


def hard_sigmoid(op: Builder, node: ir.Node) -> list[ir.Value]:
    """α·x + β, held between 0 and 1."""
    return [_hard_sigmoid(op, _x(node), _number(node, "alpha", 0.2), _number(node, "beta", 0.5))]


def hard_swish(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x · (x/6 + ½, held between 0 and 1)."""
    return [op.Mul(_x(node), _hard_sigmoid(op, _x(node), 1 / 6, 0.5))]


def prelu(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x, or slope · x below 0."""
    x, slope = _inputs(node)
    return [op.Where(op.Less(x, op.like(0, x)), op.Mul(slope, x), x)]


def gelu(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) where it is asked for by tanh; the exact form stays."""
    if _text(node, "approximate", "none") != "tanh":
        return None
    x = _x(node)
    inner = op.Add(x, _times(op, 0.044715, op.Mul(x, op.Mul(x, x)), x))
    bent = op.Tanh(_times(op, math.sqrt(2 / math.pi), inner, x))
    return [op.Mul(_times(op, 0.5, x), op.Add(op.like(1, x), bent))]


def tan(op: Builder, node: ir.Node) -> list[ir.Value]:
    """sin x / cos x."""
    return [op.Div(op.Sin(_x(node)), op.Cos(_x(node)))]


def sinh(op: Builder, node: ir.Node) -> list[ir.Value]:
    """(eˣ − e⁻ˣ) / 2."""
    x = _x(node)
    return [_times(op, 0.5, op.Sub(op.Exp(x), op.Exp(op.Neg(x))), x)]


def cosh(op: Builder, node: ir.Node) -> list[ir.Value]:
    """(eˣ + e⁻ˣ) / 2."""
    x = _x(node)
    return [_times(op, 0.5, op.Add(op.Exp(x), op.Exp(op.Neg(x))), x)]


def asinh(op: Builder, node: ir.Node) -> list[ir.Value]:
    """±log(|x| + √(x² + 1)); the sign is chosen, not multiplied, so that the derivative at 0 is 1."""
    x = _x(node)
    below = op.Less(x, op.like(0, x))
    size = op.Where(below, op.Neg(x), x)
    value = op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(x, x), op.like(1, x)))))
    return [op.Where(below, op.Neg(value), value)]


def acosh(op: Builder, node: ir.Node) -> list[ir.Value]:
    """log(x + √(x² − 1))."""
    x = _x(node)
    return [op.Log(op.Add(x, op.Sqrt(op.Sub(op.Mul(x, x), op.like(1, x)))))]


def atanh(op: Builder, node: ir.Node) -> list[ir.Value]:
    """½·log((1 + x) / (1 − x))."""
    x, one = _x(node), op.like(1, _x(node))
    return [_times(op, 0.5, op.Log(op.Div(op.Add(one, x), op.Sub(one, x))), x)]


def reciprocal(op: Builder, node: ir.Node) -> list[ir.Value]:
    """1 / x."""
    return [op.Div(op.like(1, _x(node)), _x(node))]


def cast_like(op: Builder, node: ir.Node) -> list[ir.Value]:
    """A Cast to the other's type."""
    return [op.cast(*_inputs(node))]


# --- sums


def sum_(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x₁ + x₂ + …, two at a time."""
    return [op.Identity(_chain(op.Add, _inputs(node)))]


def mean(op: Builder, node: ir.Node) -> list[ir.Value]:
    """(x₁ + … + xₙ) / n."""
    return [op.Mul(_chain(op.Add, _inputs(node)), op.like(1 / len(node.inputs), _x(node)))]


def reduce_sum_square(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Σ x²."""
    return [_sum_like(op, node, op.Mul(_x(node), _x(node)))]


def reduce_l1(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Σ |x|."""
    return [_sum_like(op, node, op.Abs(_x(node)))]


def reduce_l2(op: Builder, node: ir.Node) -> list[ir.Value]:
    """√Σ x²."""
    return [op.Sqrt(_sum_like(op, node, op.Mul(_x(node), _x(node))))]


def reduce_log_sum(op: Builder, node: ir.Node) -> list[ir.Value]:
    """log Σ x."""
    return [op.Log(_sum_like(op, node, _x(node)))]


def reduce_log_sum_exp(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Every axis listed, where none is."""
    return _with_every_axis(op, node)


def reduce_extreme(op: Builder, node: ir.Node) -> list[ir.Value]:
    """The mean of the entries that are the largest (smallest): equals share the gradient."""
    x, axes = _x(node), _axes(node)
    given = {"axes": axes} if isinstance(axes, list) else {}
    extreme = getattr(op, node.op_type)(*([x, axes] if isinstance(axes, ir.Value) else [x]), **given)
    return [_mean_of(op, x, op.Equal(x, extreme), lambda v: _sum_like(op, node, v))]


def global_max_pool(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The mean of each channel's largest entries: equals share the gradient."""
    x = _x(node)
    if x.shape is None:
        return None
    every = list(range(2, x.shape.rank()))
    over = op.const(np.array(every))
    extreme = op.ReduceMax(x, over) if _opset(op) >= 18 else op.ReduceMax(x, axes=every)
    return [_mean_of(op, x, op.Equal(x, extreme), lambda v: op.ReduceSum(v, over))]


def lp_normalization(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x / Σ|x|, or x / √Σx², along an axis."""
    x, over = _x(node), op.const(np.array([_whole(node, "axis", -1)]))
    if _whole(node, "p", 2) == 1:
        return [op.Div(x, op.ReduceSum(op.Abs(x), over))]
    return [op.Div(x, op.Sqrt(op.ReduceSum(op.Mul(x, x), over)))]


def cum_sum(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A product with a triangle of ones, along the axis."""
    x, axis = _x(node), query.constant(node.inputs[1])
    if axis is None or x.shape is None:
        return None
    place = int(axis.ravel()[0]) % x.shape.rank()
    size = x.shape[place]
    if not isinstance(size, int) or x.dtype is None:
        return None
    ones = np.triu(np.ones((size, size), x.dtype.numpy()), _whole(node, "exclusive", 0))
    triangle = op.const(np.ascontiguousarray(ones.T if _whole(node, "reverse", 0) else ones))
    order = list(range(x.shape.rank()))
    order[place], order[-1] = order[-1], order[place]
    turned = op.Transpose(x, perm=order)
    return [op.Transpose(op.MatMul(turned, triangle), perm=order)]


def einsum(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Every operand spread over all letters, multiplied, and summed over those that the result does not have."""
    equation = _text(node, "equation", "").replace(" ", "")
    operands, _, result = equation.partition("->")
    terms = operands.split(",")
    if "->" not in equation:
        result = "".join(sorted(c for c in set(operands) - {","} if operands.count(c) == 1))
    if "." in equation or any(len(set(t)) < len(t) for t in (*terms, result)):
        return None
    letters = [*result, *sorted(set(operands) - {","} - set(result))]
    spread = []
    for x, term in zip(_inputs(node), terms, strict=True):
        turned = op.Transpose(x, perm=sorted(range(len(term)), key=lambda i: letters.index(term[i]))) if term else x
        absent = [i for i, c in enumerate(letters) if c not in term]
        spread.append(op.Unsqueeze(turned, op.const(np.array(absent))) if absent else turned)
    product = _chain(op.Mul, spread)
    over = list(range(len(result), len(letters)))
    return [op.ReduceSum(product, op.const(np.array(over)), keepdims=0) if over else op.Identity(product)]


def mat_mul(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A vector made a matrix of one row or column for the product."""
    a, b = _inputs(node)
    ranks = [v.shape.rank() if v.shape is not None else None for v in (a, b)]
    if 1 not in ranks:
        return None
    a = op.Unsqueeze(a, op.const(np.array([0]))) if ranks[0] == 1 else a
    b = op.Unsqueeze(b, op.const(np.array([-1]))) if ranks[1] == 1 else b
    gone = [axis for axis, rank in ((-2, ranks[0]), (-1, ranks[1])) if rank == 1]
    return [op.Squeeze(op.MatMul(a, b), op.const(np.array(gone)))]


# --- normalizations


def batch_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """(x − μ) / √(σ² + ε) · scale + bias by channel; in training μ and σ² are the batch's, and the running move."""
    x, scale, bias, mean_, variance = _inputs(node)
    if x.shape is None:
        return None
    channel = op.const(np.array([1, -1, *[1] * (x.shape.rank() - 2)] if x.shape.rank() > 1 else [-1]))
    others = [i for i in range(x.shape.rank()) if i != 1]
    training = _whole(node, "training_mode", 0)
    if training:
        batch_mean = _mean(op, x, others)
        centred = op.Sub(x, batch_mean)
        batch_variance = _mean(op, op.Mul(centred, centred), others)
    else:
        centred = op.Sub(x, op.Reshape(mean_, channel))
        batch_variance = op.Reshape(variance, channel)
    y = _scaled(op, node, centred, batch_variance, op.Reshape(scale, channel), op.Reshape(bias, channel))
    if not training:
        return [y]
    momentum, flat = _number(node, "momentum", 0.9), op.const(np.array([-1]))
    moved = [
        op.Add(_times(op, momentum, old, x), _times(op, 1 - momentum, op.Reshape(new, flat), x))
        for old, new in ((mean_, batch_mean), (variance, batch_variance))
    ]
    return [y, *moved]


def instance_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """(x − μ) / √(σ² + ε) · scale + bias, with each row's and channel's own μ and σ²."""
    x, scale, bias = _inputs(node)
    if x.shape is None:
        return None
    channel = op.const(np.array([1, -1, *[1] * (x.shape.rank() - 2)]))
    centred, variance = _moments(op, x, range(2, x.shape.rank()))
    return [_scaled(op, node, centred, variance, op.Reshape(scale, channel), op.Reshape(bias, channel))]


def group_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The same over groups of channels; scale and bias are by channel since opset 21, by group before."""
    x, scale, bias = _inputs(node)
    if x.shape is None or scale.shape is None:
        return None
    groups, rank = _whole(node, "num_groups", 1), x.shape.rank()
    grouped = op.Reshape(x, op.const(np.array([0, groups, -1])))
    grouped.type = x.type
    centred, variance = _moments(op, grouped, [2])
    y = op.Div(centred, op.Sqrt(op.Add(variance, op.like(_number(node, "epsilon", 1e-5), x))))
    by_group = _opset(op) < 21
    if by_group:
        sides = op.const(np.array([1, groups, 1]))
        y = op.Add(op.Mul(y, op.Reshape(scale, sides)), op.Reshape(bias, sides))
    y = op.Reshape(y, op.Shape(x))
    if by_group:
        return [y]
    channel = op.const(np.array([1, -1, *[1] * (rank - 2)]))
    return [op.Add(op.Mul(y, op.Reshape(scale, channel)), op.Reshape(bias, channel))]


def mean_variance_normalization(op: Builder, node: ir.Node) -> list[ir.Value]:
    """(x − μ) / (√σ² + 10⁻⁹) over the listed axes."""
    x = _x(node)
    over = node.attributes["axes"].as_ints() if "axes" in node.attributes else (0, 2, 3)
    centred, variance = _moments(op, x, over)
    return [op.Div(centred, op.Add(op.Sqrt(variance), op.like(1e-9, x)))]


def layer_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """(x − μ) / √(σ² + ε) · scale + bias over the last axes; the mean and 1 / √(σ² + ε) beside it."""
    x, scale, *bias = _inputs(node)
    if x.shape is None:
        return None
    rank = x.shape.rank()
    over = list(range(_whole(node, "axis", -1) % rank, rank))
    mean_ = _mean(op, x, over)
    centred = op.Sub(x, mean_)
    root = op.Sqrt(op.Add(_mean(op, op.Mul(centred, centred), over), op.like(_number(node, "epsilon", 1e-5), x)))
    y = op.Mul(op.Div(centred, root), scale)
    others = [op.cast(v, o) for v, o in zip((mean_, op.Div(op.like(1, x), root)), node.outputs[1:], strict=False)]
    return [op.Add(y, bias[0]) if bias else y, *others]


# --- shapes, windows, choices


def transpose(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The reversed perm spelled out: the builder dies without one."""
    x = _x(node)
    if "perm" in node.attributes or x.shape is None:
        return None
    return [op.Transpose(x, perm=list(range(x.shape.rank()))[::-1])]


def dropout(op: Builder, node: ir.Node) -> list[ir.Value]:
    """x · Dropout(1, 1, …): what is drawn depends on nothing that is trained. In inference the value itself."""
    x = _x(node)
    if len(node.inputs) < 3 and len(node.outputs) == 1:
        return [op.Identity(x)]
    one = ir.tensor(np.ones(1, x.dtype.numpy() if x.dtype is not None else np.float32))
    ones = op.ConstantOfShape(op.Shape(x), value=one)
    attributes = {name: a.value for name, a in node.attributes.items()}
    drawn, mask = op.Dropout(ones, *node.inputs[1:], outputs=2, **attributes)
    return [op.Mul(x, drawn), mask]


def where(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Both branches expanded to the result's shape."""
    condition, a, b = _inputs(node)
    shapes = [v.shape for v in (condition, a, b)]
    if None not in shapes and shapes[0] == shapes[1] == shapes[2]:
        return None
    sides = [op.Shape(v) for v in (condition, a, b)]
    a = op.Expand(op.Expand(a, sides[0]), sides[2])
    b = op.Expand(op.Expand(b, sides[0]), sides[1])
    return [op.Where(condition, a, b)]


def split(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Slices, where an output is not used."""
    if all(o.uses() or o.is_graph_output() for o in node.outputs):
        return None
    axis = _whole(node, "axis", 0)
    sizes = [o.shape[axis] for o in node.outputs if o.shape is not None]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(node.outputs):
        return None
    ends, over = np.cumsum(known), op.const(np.array([axis]))
    return [
        op.Slice(_x(node), op.const(np.array([end - size])), op.const(np.array([end])), over)
        for size, end in zip(known, ends, strict=True)
    ]


def depth_to_space(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A Reshape, a Transpose and a Reshape."""
    sides, b = _static(_x(node)), _whole(node, "blocksize", 1)
    if sides is None:
        return None
    c, h, w = sides
    last = _text(node, "mode", "DCR") == "CRD"
    first = [c // b**2, b, b, h, w] if last else [b, b, c // b**2, h, w]
    turned = [0, 1, 4, 2, 5, 3] if last else [0, 3, 4, 1, 5, 2]
    return [_moved(op, _x(node), first, turned, [c // b**2, h * b, w * b])]


def space_to_depth(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A Reshape, a Transpose and a Reshape."""
    sides, b = _static(_x(node)), _whole(node, "blocksize", 1)
    if sides is None:
        return None
    c, h, w = sides
    return [_moved(op, _x(node), [c, h // b, b, w // b, b], [0, 3, 5, 1, 2, 4], [c * b**2, h // b, w // b])]


def conv(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Pads written out, where auto_pad says them."""
    if windows.auto_pad(node) == "NOTSET":
        return None
    kept = {name: a.value for name, a in node.attributes.items() if name not in ("auto_pad", "pads")}
    return [op.Conv(*node.inputs, pads=windows.window(node).pads, **kept)]


def max_pool(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """max(…) of one strided slice for each place in the window; the first of equals has the gradient."""
    if len(node.outputs) > 1:
        return None
    x, w = _x(node), windows.window(node)
    sizes, counts = windows.static(node, x), windows.static(node, node.outputs[0])
    reach = [(n - 1) * s + e for n, s, e in zip(counts, w.strides, w.extents, strict=True)]
    end = [max(r - size - b, 0) for r, size, b in zip(reach, sizes, w.begin, strict=True)]
    if any((*w.begin, *end)):
        x = op.Pad(x, op.const(np.array([0, 0, *w.begin, 0, 0, *end])), op.like(_lowest(x), x))
    over, steps = op.const(np.arange(2, 2 + len(sizes))), op.const(np.array(w.strides))
    parts = []
    for place in np.ndindex(*w.kernel):
        start = np.array(place) * w.dilations
        stop = start + (np.array(counts) - 1) * w.strides + 1
        parts.append(op.Slice(x, op.const(start), op.const(stop), over, steps))
    return [_chain(lambda a, b: op.Where(op.GreaterOrEqual(a, b), a, b), parts)]


def average_pool(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A product with one matrix per axis, which says what places a window averages."""
    y, w = _x(node), windows.window(node)
    include = bool(_whole(node, "count_include_pad", 0))
    counts = windows.static(node, node.outputs[0])
    for axis, (size, count) in enumerate(zip(windows.static(node, y), counts, strict=True)):
        y = along(op, y, axis + 2, membership(w, axis, size, count, average=True, include=include))
    return [op.Identity(y)]


RULES: dict[str, Rule] = {
    "Acosh": acosh,
    "Asinh": asinh,
    "Atanh": atanh,
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "CastLike": cast_like,
    "Celu": celu,
    "Conv": conv,
    "Cosh": cosh,
    "CumSum": cum_sum,
    "DepthToSpace": depth_to_space,
    "Dropout": dropout,
    "Einsum": einsum,
    "Elu": elu,
    "Gelu": gelu,
    "GlobalMaxPool": global_max_pool,
    "GroupNormalization": group_normalization,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "MatMul": mat_mul,
    "MaxPool": max_pool,
    "Mean": mean,
    "MeanVarianceNormalization": mean_variance_normalization,
    "Mish": mish,
    "PRelu": prelu,
    "Reciprocal": reciprocal,
    "ReduceL1": reduce_l1,
    "ReduceL2": reduce_l2,
    "ReduceLogSum": reduce_log_sum,
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": reduce_extreme,
    "ReduceMin": reduce_extreme,
    "ReduceSumSquare": reduce_sum_square,
    "Selu": selu,
    "Sinh": sinh,
    "Softplus": softplus,
    "Softsign": softsign,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Sum": sum_,
    "Tan": tan,
    "ThresholdedRelu": thresholded_relu,
    "Transpose": transpose,
    "Where": where,
}


# --- what the rules share


def _moved(op: Builder, x: ir.Value, first: list[int], order: list[int], last: list[int]) -> ir.Value:
    turned = op.Transpose(op.Reshape(x, op.const(np.array([-1, *first]))), perm=order)
    made: ir.Value = op.Reshape(turned, op.const(np.array([-1, *last])))
    return made


def _static(x: ir.Value) -> list[int] | None:
    """Return the sides behind the rows, if all are known."""
    sides = list(x.shape)[1:] if x.shape is not None else [None]
    return [s for s in sides if isinstance(s, int)] if all(isinstance(s, int) for s in sides) else None


def _lowest(x: ir.Value) -> float:
    assert x.dtype is not None
    return float(ir.DataType(x.dtype).min)


def _two_sided(op: Builder, x: ir.Value, above: ir.Value, below: ir.Value) -> ir.Value:
    made: ir.Value = op.Where(op.Greater(x, op.like(0, x)), above, below)
    return made


def _expm1(op: Builder, x: ir.Value, factor: float = 1.0) -> ir.Value:
    """e^(factor·x) − 1 where x ≤ 0, and 0 elsewhere: it overflows nowhere."""
    zero = op.like(0, x)
    low = op.Where(op.Greater(x, zero), zero, x)
    made: ir.Value = op.Sub(op.Exp(_times(op, factor, low, x)), op.like(1, x))
    made.type = x.type
    return made


def _softplus(op: Builder, x: ir.Value) -> ir.Value:
    m = op.Relu(x)
    made: ir.Value = op.Add(m, op.Log(op.Add(op.Exp(op.Neg(m)), op.Exp(op.Sub(x, m)))))
    return made


def _hard_sigmoid(op: Builder, x: ir.Value, alpha: float, beta: float) -> ir.Value:
    line = op.Add(_times(op, alpha, x), op.like(beta, x))
    made: ir.Value = op.Clip(line, op.like(0, x), op.like(1, x))
    return made


def _times(op: Builder, factor: float, value: ir.Value, like: ir.Value | None = None) -> ir.Value:
    made: ir.Value = value if factor == 1 else op.Mul(value, op.like(factor, value if like is None else like))
    return made


def _chain(join: Callable[[Any, Any], Any], values: Sequence[ir.Value]) -> ir.Value:
    total, *rest = values
    for value in rest:
        total = join(total, value)
    return total


def _moments(op: Builder, x: ir.Value, over: Iterable[int]) -> tuple[ir.Value, ir.Value]:
    """Return x − μ and σ² along some axes."""
    centred = op.Sub(x, _mean(op, x, list(over)))
    return centred, _mean(op, op.Mul(centred, centred), list(over))


def _mean(op: Builder, x: ir.Value, over: list[int]) -> ir.Value:
    if _opset(op) >= 18:
        made: ir.Value = op.ReduceMean(x, op.const(np.array(over)))
    else:
        made = op.ReduceMean(x, axes=over)
    return made


def _scaled(
    op: Builder, node: ir.Node, centred: ir.Value, variance: ir.Value, scale: ir.Value, bias: ir.Value
) -> ir.Value:
    root = op.Sqrt(op.Add(variance, op.like(_number(node, "epsilon", 1e-5), _x(node))))
    made: ir.Value = op.Add(op.Mul(op.Div(centred, root), scale), bias)
    return made


def _mean_of(op: Builder, x: ir.Value, chosen: ir.Value, total: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Return the mean of the entries that are chosen."""
    made: ir.Value = op.Div(total(op.Where(chosen, x, op.like(0, x))), total(op.cast(chosen, x)))
    return made


def _axes(node: ir.Node) -> list[int] | ir.Value | None:
    """Return the axes of a reduction: listed, as a value, or None for all of them."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    return node.inputs[1] if len(node.inputs) > 1 else None


def _sum_like(op: Builder, node: ir.Node, x: ir.Value) -> ir.Value:
    """Return ReduceSum of another value over the axes of a node, whatever its opset says them by."""
    axes = _axes(node)
    over = op.const(np.array(axes)) if isinstance(axes, list) else axes
    kept = {n: node.attributes[n].value for n in ("keepdims", "noop_with_empty_axes") if n in node.attributes}
    made: ir.Value = op.ReduceSum(*([x] if over is None else [x, over]), **kept)
    return made


def _with_every_axis(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    x = _x(node)
    if _axes(node) is not None or x.shape is None or _whole(node, "noop_with_empty_axes", 0):
        return None
    every = list(range(x.shape.rank()))
    kept = {name: a.value for name, a in node.attributes.items()}
    reduce = getattr(op, node.op_type)
    return [reduce(x, op.const(np.array(every)), **kept) if _opset(op) >= 18 else reduce(x, axes=every, **kept)]


def _opset(op: Builder) -> int:
    return op.graph.opset_imports.get("", 1)


def _x(node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    return x


def _inputs(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None]


def _number(node: ir.Node, name: str, default: float) -> float:
    return node.attributes[name].as_float() if name in node.attributes else default


def _whole(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _text(node: ir.Node, name: str, default: str) -> str:
    return node.attributes[name].as_string() if name in node.attributes else default
