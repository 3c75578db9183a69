"""Pools: the maximum, the average and the p-norm of windows, and of whole images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortpipe.graph.builder import Builder
from ortpipe.stages.derive.backward import Backward, Gradients, ranked
from ortpipe.stages.derive.rules.activations import integer
from ortpipe.stages.derive.rules.windows import Window, static, window

Matrix = npt.NDArray[np.float64]
FAR = 2**31 - 1


def along(op: Builder, x: ir.Value, axis: int, matrix: Matrix) -> ir.Value:
    """Return matrix · x along one axis: a value's places there become as many as the matrix has rows."""
    assert x.dtype is not None
    shape, own = ranked(x), matrix.astype(x.dtype.numpy())
    rank = shape.rank()
    dims = [len(matrix) if i == axis else d for i, d in enumerate(shape)]
    if axis == rank - 1:
        made = op.MatMul(x, op.const(np.ascontiguousarray(own.T)))
    elif axis == rank - 2:
        made = op.MatMul(op.const(own), x)
    else:
        perm = [i for i in range(rank) if i not in (axis, rank - 1)] + [axis, rank - 1]
        made = op.MatMul(op.const(own), op.Transpose(x, perm=perm))
        made = op.Transpose(made, perm=np.argsort(perm).tolist())
    made.type, made.shape = x.type, ir.Shape(dims)
    return made


def max_pool(op: Backward, node: ir.Node, dy: ir.Value, *_: ir.Value | None) -> Gradients:
    """MaxPool: dx = Σ dy over the windows whose first maximum, in row-major order, is that place (as PyTorch)."""
    x, windows = node.inputs[0], window(node)
    assert x is not None
    dy, indices = op.full(dy, node.outputs[0]), _indices(op, node, windows)
    count = op.Reshape(op.Size(x), op.ints([1]))
    zeros = op.Expand(op.like(0, x), count)
    spread = zip(windows.kernel, windows.dilations, windows.strides, strict=True)
    # how many neighbouring windows may share a place
    shared = [1 if k == 1 else -(-((k - 1) * d + 1) // s) for k, d, s in spread]
    if math.prod(shared) == 1 or op.graph.opset_imports.get("", 21) >= 16:
        places, values = _flat(op, indices), _flat(op, dy)
        alone = math.prod(shared) == 1
        dx = op.ScatterElements(zeros, places, values, axis=0) if alone else op.scatter_add(zeros, places, values, 0)
    else:  # before opset 16 nothing scatters and adds: every n-th window shares no place with the next
        dx = None
        axes, steps = op.ints(list(range(2, len(shared) + 2))), op.ints(shared)
        ends = op.ints([FAR] * len(shared))
        for start in itertools.product(*map(range, shared)):
            part, places = (_flat(op, op.Slice(v, op.ints(start), ends, axes, steps)) for v in (dy, indices))
            scattered = op.ScatterElements(zeros, places, part, axis=0)
            dx = scattered if dx is None else op.Add(dx, scattered)
    return [_as(op.Reshape(dx, op.shape(x)), x)]


def _indices(op: Backward, node: ir.Node, windows: Window) -> ir.Value:
    """Return where each window's first maximum is, counted over all of x in row-major order."""
    x, n = node.inputs[0], len(windows.kernel)
    assert x is not None
    if len(node.outputs) > 1 and node.outputs[1].name and not integer(node, "storage_order", 0):
        return node.outputs[1]
    given: dict[str, Any] = {name: value for name, value in node.attributes.items() if name != "storage_order"}
    if n < 3 and all(s == 1 for s in windows.strides):
        # onnx.reference gives Indices only where strides differ: an axis of one place more makes them differ
        given = {"kernel_shape": [*windows.kernel, 1], "strides": [*windows.strides, 2]}
        given |= {"dilations": [*windows.dilations, 1], "pads": [*windows.begin, 0, *windows.end, 0]}
        _, indices = op.MaxPool(op.Unsqueeze(x, op.ints([-1])), outputs=2, **given)
        return op.Squeeze(indices, op.ints([-1]))
    _, indices = op.MaxPool(x, outputs=2, **given)
    return indices


def average_pool(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """AveragePool: dx = Aᵀ dy, with A a product of one small matrix per axis (which places a window averages).

    With count_include_pad a window counts its pads too, but never what lies beyond them (ceil_mode), as PyTorch.
    """
    return [_over_windows(op, node, op.full(dy, node.outputs[0]), average=True)]


def lp_pool(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """LpPool y = (Σ |x|ᵖ)^(1/p): dx = sign(x) · |x|ᵖ⁻¹ · Σ dy · y¹⁻ᵖ over the windows of x; 0 where y = 0."""
    x, y, p = node.inputs[0], node.outputs[0], integer(node, "p", 2)
    assert x is not None
    share = _over_windows(op, node, op.full(op.Mul(dy, _inverse_power(op, y, p - 1)), y), average=False)
    return [op.Mul(_signed_power(op, x, p - 1), share)]


def _over_windows(op: Backward, node: ir.Node, dy: ir.Value, *, average: bool) -> ir.Value:
    x, windows = node.inputs[0], window(node)
    assert x is not None
    # the output says how many windows there are: up to opset 21, ceil_mode keeps one that lies on the pads alone
    for axis, (size, count) in enumerate(zip(static(node, x), static(node, node.outputs[0]), strict=True)):
        include = bool(integer(node, "count_include_pad", 0))
        dy = along(op, dy, axis + 2, membership(windows, axis, size, count, average=average, include=include).T)
    return _as(dy, x)


def membership(windows: Window, axis: int, size: int, count: int, *, average: bool, include: bool) -> Matrix:
    """Return the matrix (windows × places) that sums, or averages, the places of each window along one axis."""
    starts = np.arange(count)[:, None] * windows.strides[axis] - windows.begin[axis]
    places = starts + np.arange(windows.kernel[axis]) * windows.dilations[axis]
    inside = (places >= 0) & (places < size)
    matrix = np.zeros((count, size))
    rows = np.broadcast_to(np.arange(count)[:, None], places.shape)
    np.add.at(matrix, (rows[inside], places[inside]), 1.0)
    counted = places < size + windows.end[axis] if include else inside
    return matrix / np.maximum(counted.sum(axis=1, keepdims=True), 1) if average else matrix


def global_average(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """GlobalAveragePool: dx = dy / number of places."""
    x = node.inputs[0]
    assert x is not None
    return [op.averaged(dy, x, node.outputs[0])]


def global_max(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """GlobalMaxPool: dy goes to each channel's first maximum (PyTorch's adaptive_max_pool)."""
    x = node.inputs[0]
    assert x is not None
    rows = op.Reshape(x, op.ints([0, 0, -1]))
    first = op.ArgMax(rows, axis=2, keepdims=1)
    zeros = op.Expand(op.like(0, x), op.Shape(rows))
    share = op.Reshape(op.full(dy, node.outputs[0]), op.ints([0, 0, 1]))
    return [_as(op.Reshape(op.ScatterElements(zeros, first, share, axis=2), op.shape(x)), x)]


def global_lp(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """GlobalLpPool y = (Σ |x|ᵖ)^(1/p): dx = sign(x) · |x|ᵖ⁻¹ · dy · y¹⁻ᵖ; 0 where y = 0."""
    x, y, p = node.inputs[0], node.outputs[0], integer(node, "p", 2)
    assert x is not None
    return [op.Mul(_signed_power(op, x, p - 1), op.Mul(dy, _inverse_power(op, y, p - 1)))]


def _signed_power(op: Backward, x: ir.Value, power: int) -> ir.Value:
    """sign(x) · |x|ᵖ, the derivative of |x|ᵖ⁺¹ / (p + 1)."""
    if power == 0:
        return op.Sign(x)
    if power == 1:
        return x
    size = op.Abs(x) if power == 2 else op.Pow(op.Abs(x), op.like(power - 1, x))
    return op.Mul(x, size)


def _inverse_power(op: Backward, y: ir.Value, power: int) -> ir.Value:
    """y⁻ᵖ, and 0 where y = 0."""
    if power == 0:
        return op.like(1, y)
    zero = op.Equal(y, op.like(0, y))
    safe = op.Where(zero, op.like(1, y), y)
    raised = safe if power == 1 else op.Pow(safe, op.like(power, y))
    return op.Where(zero, op.like(0, y), op.Reciprocal(raised))


def _flat(op: Backward, x: ir.Value) -> ir.Value:
    return op.Reshape(x, op.ints([-1]))


def _as(gradient: ir.Value, x: ir.Value) -> ir.Value:
    gradient.type, gradient.shape = x.type, x.shape
    return gradient


RULES: dict[str, Callable[..., Gradients]] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average,
    "GlobalLpPool": global_lp,
    "GlobalMaxPool": global_max,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
}
