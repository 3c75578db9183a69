"""Pooling: the maximum, average or p-norm of windows and of whole images."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.autodiff.rules.indexing import put
from ortpipe.autodiff.windows import Window, auto_pad, spatial, static, unpadded, window
from ortpipe.errors import DeriveError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.query import called

# Measured on onnxruntime 1.19 (CPU): products of strips take a third to a half of the time of MaxPool's Indices and
# MaxUnpool up to 64 pixels per strip, three quarters with 90, at most the same time with 128.
STRIP = 128


def along(op: Builder, x: Value, axis: int, matrix: Value) -> Value:
    """Return matrix · x along one axis; its new size is the matrix's number of rows."""
    rank = ranked(x).rank()
    if axis == rank - 1:
        y = op.MatMul(x, op.Transpose(matrix))
    elif axis == rank - 2:
        y = op.MatMul(matrix, x)
    else:
        perm = [i for i in range(rank) if i not in (axis, rank - 1)] + [axis, rank - 1]
        y = op.MatMul(matrix, op.Transpose(x, perm=perm))
        y = op.Transpose(y, perm=np.argsort(perm).tolist())
    rows = ranked(matrix)[0] if matrix.shape is not None else None
    y.type, y.shape = x.type, ir.Shape([rows if i == axis else d for i, d in enumerate(ranked(x))])
    return y


def max_pool(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """MaxPool: dx = Σ dy over the windows whose first maximum, in row-major order, is at that pixel (as PyTorch)."""
    windows = unpadded(node)
    tile, sizes = _tiles(node, x, windows), windows.kernel.tolist()
    if tile and _has_short_strips(node, x, windows):
        return [_max_pool_by_strips(op, node, dy, x, windows)]
    if tile and x.dtype == ir.DataType.FLOAT:  # the only dtype of MaxUnpool
        places = op.Max(_indices(op, node), op.const(np.array(0)))  # windows of only nan or -inf have negative indices
        return [op.MaxUnpool(dy, places, kernel_shape=sizes, strides=sizes)]
    indices, shared = _indices(op, node), -(-windows.extents // windows.strides)
    shared[windows.kernel == 1] = 1  # how many windows may share a pixel
    return [put(op, x, indices, dy, add=bool(shared.prod() > 1))]


def _has_short_strips(node: Node, x: Value, windows: Window) -> bool:
    """Return whether tiling windows start at the edge of x and have short strips; 1-D pools are faster without."""
    images = len(windows.kernel) > 1 and x.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    return images and windows.kernel[0] * math.prod(static(node, x)[1:]) <= STRIP and not any(window(node).begin)


def _max_pool_by_strips(op: Backward, node: Node, dy: Value, x: Value, windows: Window) -> Value:
    """Return dx by strips one window high, as rows of a matrix: products with 0-1 matrices copy and count.

    e = [x = y of its window]; the first maximum is where relu(e − number of earlier e in the window) is 1.
    Infinities are clipped to the largest float, because multiplying them by 0 would make their strip nan. In float32 e
    is max(0, 1 + (x − y) · 2¹²⁰), which is one kernel; comparing and casting takes three times as long.
    """
    assert x.dtype is not None
    dtype, y, counts = x.dtype.numpy(), node.outputs[0], [1, *static(node, node.outputs[0])[1:]]
    places = np.indices([windows.kernel[0], *static(node, x)[1:]]).reshape(len(counts), -1)
    owners = np.ravel_multi_index(tuple(places // windows.kernel[:, None]), counts)
    copies = op.const((np.arange(math.prod(counts))[:, None] == owners).astype(dtype))
    earlier = np.triu(owners[:, None] == owners, 1)
    largest = float(np.finfo(dtype).max)
    strips, tops = (
        op.Clip(op.reshape(v, [-1, n], [None, n]), -largest, largest)
        for v, n in ((x, len(owners)), (y, math.prod(counts)))
    )
    difference = op.Gemm(tops, copies, strips, alpha=-1.0)
    single = x.dtype == ir.DataType.FLOAT
    equal = op.HardSigmoid(difference, alpha=2.0**120, beta=1.0) if single else op.cast(op.Equal(difference, 0), x)
    first = op.Relu(op.MatMul(equal, op.const((np.eye(len(owners)) - earlier).astype(dtype))))
    dy_by_place = op.MatMul(op.reshape(dy, [-1, math.prod(counts)], [None, math.prod(counts)]), copies)
    return op.Reshape(dy_by_place * first, op.shape(x))


def _tiles(node: Node, x: Value, windows: Window) -> bool:
    """Return whether the windows tile x: adjacent, without gap or remainder."""
    side_by_side = all(windows.kernel == windows.strides) and all(windows.dilations == 1)
    sizes, counts = spatial(x), spatial(node.outputs[0])
    if not side_by_side or None in (*sizes, *counts):
        return False
    return any(windows.kernel > 1) and sizes == (np.array(counts) * windows.kernel).tolist()


def _indices(op: Backward, node: Node) -> Value:
    """Return the row-major index in x of each window's first maximum."""
    x, n, strides = node.inputs[0], len(unpadded(node).kernel), unpadded(node).strides
    if len(node.outputs) > 1 and node.outputs[1].name and not node.attributes.get_int("storage_order", 0):
        return node.outputs[1]
    attributes: dict[str, Any] = {name: value for name, value in node.attributes.items() if name != "storage_order"}
    if n >= 3 or any(strides != 1):
        return op.MaxPool(x, outputs=2, **attributes)[1]
    windows = window(node)
    # onnx.reference returns Indices only if strides differ; an extra axis of size 1 makes them differ
    attributes = {"kernel_shape": (windows.kernel, 1), "strides": (windows.strides, 2)}
    attributes |= {"dilations": (windows.dilations, 1), "pads": (np.append(windows.begin, 0), *windows.end, 0)}
    attributes = {name: np.hstack(values).tolist() for name, values in attributes.items()}
    _, indices = op.MaxPool(op.Unsqueeze(x, [-1]), outputs=2, **attributes)
    return op.Squeeze(indices, [-1])


def average_pool(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """AveragePool: dx = Aᵀ dy, where A is a product of one small matrix per axis (the pixels that a window averages).

    The matrices are the operator applied to the identity matrix, one axis at a time: constants, for known sizes.
    """
    return [_over_windows(op, node, dy, x, average=True)]


def lp_pool(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """LpPool y = (Σ |x|ᵖ)^(1/p): dx = sign(x) · |x|ᵖ⁻¹ · Σ dy · y¹⁻ᵖ over the windows of x; 0 where y = 0."""
    y, p = node.outputs[0], node.attributes.get_int("p", 2)
    share = _over_windows(op, node, op.full(dy * _inverse_power(op, y, p - 1), y), x, average=False)
    return [_signed_power(op, x, p - 1) * share]


def _over_windows(op: Backward, node: Node, dy: Value, x: Value, *, average: bool) -> Value:
    for i in range(len(spatial(x))):
        dy = along(op, dy, i + 2, _of_unit_matrix(op, node, x, i, average=average))
    dy.shape = x.shape
    return dy


def _of_unit_matrix(op: Backward, node: Node, x: Value, i: int, *, average: bool) -> Value:
    """Return the matrix (pixels × windows) of spatial axis i, by applying the pool along this axis only."""
    windows, pads = unpadded(node), node.attributes.get_ints("pads", None)
    attributes: dict[str, Any] = {"kernel_shape": [int(windows.kernel[i])], "strides": [int(windows.strides[i])]}
    attributes |= {"pads": list(pads[i :: len(windows.kernel)])} if pads else {"auto_pad": auto_pad(node)}
    if windows.dilations[i] != 1:
        attributes["dilations"] = [int(windows.dilations[i])]
    for name in ("ceil_mode", "count_include_pad") if average else ("ceil_mode",):
        if node.attributes.get_int(name, 0):
            attributes[name] = 1
    pool, p = (op.AveragePool, {}) if average else (op.LpPool, {"p": 1})
    matrix = op.Squeeze(pool(op.Unsqueeze(eye(op, x, i + 2), [1]), **attributes, **p), [1])
    matrix.shape = ir.Shape([ranked(v)[i + 2] for v in (x, node.outputs[0])])
    return matrix


def global_average(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """GlobalAveragePool: dx = dy / number of pixels."""
    return [op.averaged(dy, x, node.outputs[0])]


def global_max(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """GlobalMaxPool: dy goes to each channel's first maximum (PyTorch's adaptive_max_pool)."""
    rows = op.Reshape(x, [0, 0, -1])
    first, zeros = op.ArgMax(rows, axis=2, keepdims=1), op.Expand(op.like(0, x), op.Shape(rows))
    return [op.Reshape(op.ScatterElements(zeros, first, op.Reshape(dy, [0, 0, 1]), axis=2), op.shape(x))]


def global_lp(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """GlobalLpPool y = (Σ |x|ᵖ)^(1/p): dx = sign(x) · |x|ᵖ⁻¹ · dy · y¹⁻ᵖ; 0 where y = 0."""
    power = node.attributes.get_int("p", 2) - 1
    return [_signed_power(op, x, power) * (dy * _inverse_power(op, node.outputs[0], power))]


def _signed_power(op: Backward, x: Value, power: int) -> Value:
    """sign(x) · |x|ᵖ, the derivative of |x|ᵖ⁺¹ / (p + 1)."""
    if power < 2:
        return op.Sign(x) if power == 0 else x
    return x * (op.Abs(x) if power == 2 else op.Pow(op.Abs(x), power - 1))


def _inverse_power(op: Backward, y: Value, power: int) -> Value:
    """y⁻ᵖ, and 0 where y = 0."""
    if power == 0:
        return op.like(1, y)
    zero = op.Equal(y, 0)
    safe = op.Where(zero, 1, y)
    powered = safe if power == 1 else op.Pow(safe, power)
    return op.Where(zero, 0, op.Reciprocal(powered))


def max_unpool(op: Backward, node: Node, dy: Value, x: Value, places: Value, shape: Value | None = None) -> Gradients:
    """MaxUnpool: dx = dy at the indices that x was written to."""
    if shape is not None:
        raise DeriveError(
            "MaxUnpool has a gradient only if its windows decide the size of its output.",
            got=f"{called(node)}, with the input output_shape",
            fix="Remove output_shape, or take no gradient through the node{@freeze}.",
        )
    return [op.Gather(op.reshape(dy, [-1], [None]), places)]


def eye(op: Backward, x: Value, axis: int) -> Value:
    """Return the identity matrix of an axis's size, in x's type; a linear operator maps it to its own matrix."""
    places = op.Range(0, op.dim(x, axis), 1)
    return op.cast(op.Equal(op.Unsqueeze(places, [1]), op.Unsqueeze(places, [0])), x)


RULES: Rules = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average,
    "GlobalLpPool": global_lp,
    "GlobalMaxPool": global_max,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
}
