"""Convolution and its transpose. Each one's input gradient is the other; both share one kernel gradient."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules, ranked
from ortpipe.autodiff.windows import (
    FAR,
    Ints,
    Window,
    auto_pad,
    halves,
    not_static,
    spatial,
    static,
    unpadded,
    window,
)

# Measured on onnxruntime 1.19 (CPU): up to a 3×3 kernel, a matrix product for each of its places takes less than half
# the time of a convolution whose kernel is dy; from 5×5 on the copies cost more than they save.
COLUMNS = 9
# Up to 6×6 images, products with matrices of 0 and 1 make columns of x 1.2 to 3 times as fast as slices, which copy
# row by row, of a few numbers each. At 8×8 both take as long, at 16×16 slices are six times as fast.
PLACES = 36
# Depthwise, the products of lines take half to a third of the time of places up to 32 numbers, as long with 64.
LINE = 64


def conv(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """Conv y = x ⋆ w + b: dx = dy transposed-convolved with w, dw = x ⋆ dy, db = Σ dy."""
    windows, group = window(node), node.attributes.get_int("group", 1)
    turns = group > 1 and all(windows.strides == 1)
    dx = (_spread_by_turned_kernels if turns else _spread)(op, node, dy, w, x, windows, group)
    return [dx, _kernel(op, node, x, dy, w, windows, group), _bias(op, dy) if b is not None else None]


def conv_transpose(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """ConvTranspose: dx = dy ⋆ w, dw = dy ⋆ x (the kernel gradient of that convolution), db = Σ dy."""
    group, (windows, extra) = node.attributes.get_int("group", 1), _transposed_window(node)
    dx = op.Conv(dy, w, **_attributes(windows, group))
    if any(extra >= windows.strides):
        dx = _cut(op, dx, x)  # what lies beyond the last window came from no input
    return [dx, _kernel(op, node, dy, x, w, windows, group), _bias(op, dy) if b is not None else None]


def col2im(op: Backward, node: Node, dy: Value, x: Value, image: Value, block: Value) -> Gradients:
    """Col2Im adds columns up to an image: dx = the columns of dy, by a convolution with unit kernels."""
    kernel = op.constant(block)
    if kernel is None or dy.dtype is None:
        raise not_static(node, block, "the block's shape")
    sizes = kernel.numpy()
    units = op.const(np.eye(sizes.prod(), dtype=dy.dtype.numpy()).reshape(-1, 1, *sizes))
    given = {n: node.attributes.get_ints(n) for n in ("dilations", "pads", "strides") if n in node.attributes}
    one_channel = op.Reshape(dy, op.Concat([-1, 1], image, axis=0))
    return [op.Reshape(op.Conv(one_channel, units, **given), op.shape(x))]


def _spread(op: Backward, node: Node, dy: Value, w: Value, x: Value, windows: Window, group: int) -> Value:
    """Return dx by ConvTranspose; output_padding is what the stride left over at the end of x."""
    left = _left_over(windows, spatial(x))
    padding = [int(s) - 1 if rest is None else rest for rest, s in zip(left, windows.strides, strict=True)]
    extra = {"output_padding": padding} if any(padding) else {}
    dx = op.ConvTranspose(dy, w, **_attributes(windows, group), **extra)
    return _cut(op, dx, x) if None in left else dx


def _spread_by_turned_kernels(
    op: Backward, node: Node, dy: Value, w: Value, x: Value, windows: Window, group: int
) -> Value:
    """Return dx, where strides are 1, by a grouped Conv of dy with kernels turned around.

    Twice as fast as a grouped ConvTranspose, which onnxruntime computes group by group; with strides, where dy had to
    be spread by zeros, that is two to three times as fast.
    """
    outer = _channels(w, group)[0]
    if outer is None:
        raise not_static(node, w, "the first axis")
    n = len(windows.kernel)
    begin, end = windows.extents - 1 - windows.begin, windows.extents - 1 - windows.end
    if min(*begin, *end) < 0:  # x was padded by more than a window reaches
        dy = op.Slice(dy, np.maximum(-begin, 0), np.where(end < 0, end, FAR), range(2, n + 2))
    turned = op.Reshape(w, [group, outer, -1, *windows.kernel])
    turned = op.Transpose(turned, perm=[0, 2, 1, *range(3, n + 3)])
    turned = op.Reshape(turned, [-1, outer, *windows.kernel])
    if flipped := [i + 2 for i, k in enumerate(windows.kernel) if k > 1]:
        last, first = ([v] * len(flipped) for v in (-1, -FAR))
        turned = op.Slice(turned, last, first, flipped, last)
    plain = replace(windows, pads=np.maximum([*begin, *end], 0))
    return op.Conv(dy, turned, **_attributes(plain, group))


def _kernel(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """dw[m, c, j] = Σₙₒ dy[n, m, o] · x[n, c, o · stride − begin + j · dilation]."""
    sizes, counts = spatial(x), spatial(dy)
    if windows.kernel.prod() <= COLUMNS and None not in (*sizes, *counts, *_channels(w, group)):
        depthwise = group > 1 and _channels(w, group) == (1, 1)
        if depthwise and windows.kernel.prod() > 1 and static(node, x)[-1] <= LINE:
            return _kernel_by_lines(op, node, x, dy, windows, group)
        few = windows.kernel.prod() > 1 and math.prod(static(node, x)) <= PLACES
        return (_kernel_by_columns if few else _kernel_by_places)(op, node, x, dy, w, windows, group)
    n = len(windows.kernel)
    swap = [1, 0, *range(2, n + 2)]
    if group == 1:
        data = op.Transpose(x, perm=swap)
    else:  # the batch's images become the channels of a group, the group's channels become the batch
        data = op.Reshape(x, _behind(op, [0, group, -1], x))
        data = op.Transpose(data, perm=[2, 1, 0, *range(3, n + 3)])
        data = op.Reshape(data, _behind(op, [0, -1], x))
    swapped = replace(windows, strides=windows.dilations, dilations=windows.strides)
    dw = op.Conv(data, op.Transpose(dy, perm=swap), **_attributes(swapped, group))
    if any(windows.strides > 1):  # rows that no window reached make it longer than the kernel
        dw = op.Slice(dw, [0] * n, windows.kernel, range(2, n + 2))
    dw = op.Transpose(dw, perm=swap)
    if None in (*sizes, *counts) and w.shape is not None and w.shape.is_static():
        dw = op.Reshape(dw, w.shape.numpy())  # which nobody can infer of free axes, and train's Scan must know
    return dw


def _kernel_by_columns(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """Return dw as one matrix product per group: dy (M × N·O) with the columns of x (K·C × N·O), K kernel places."""
    outer, inner = _channels(w, group)
    assert outer is not None and inner is not None
    n, swap = len(windows.kernel), [1, 0, *range(2, len(windows.kernel) + 2)]
    data = op.Transpose(x, perm=swap)
    joined = _columns_by_products(op, data, static(node, x), static(node, dy), windows, group, inner)
    if group == 1:
        rows = op.Reshape(op.Transpose(dy, perm=swap), [outer, -1])
        dw = op.Gemm(rows, op.Squeeze(joined, [0]), transB=1)
        dw = op.Reshape(dw, [outer, *windows.kernel, inner])
        return op.Transpose(dw, perm=[0, n + 1, *range(1, n + 1)])
    rows = op.Transpose(op.Reshape(dy, [0, group, outer, -1]), perm=[1, 0, 3, 2])
    dw = op.MatMul(joined, op.Reshape(rows, [group, -1, outer]))
    dw = op.Reshape(dw, [group, *windows.kernel, inner, outer])
    dw = op.Transpose(dw, perm=[0, n + 2, n + 1, *range(1, n + 1)])
    return op.Reshape(dw, [group * outer, inner, *windows.kernel])


def _columns_by_products(
    op: Backward, data: Value, sizes: list[int], counts: list[int], windows: Window, group: int, inner: int
) -> Value:
    """Return the columns (G × K·C × N·O) of data (channels first): products with P[k, i, o] = 1 where o's k is at i."""
    assert data.dtype is not None
    picks = np.ones((1, 1, 1), data.dtype.numpy())
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        starts = np.arange(count) * windows.strides[axis] - windows.begin[axis]
        at = np.arange(windows.kernel[axis])[:, None] * windows.dilations[axis] + starts
        picks = np.kron(picks, np.arange(size)[:, None] == at[:, None]).astype(picks.dtype)
    images = op.Reshape(data, [*([group] if group > 1 else []), 1, -1, math.prod(sizes)])
    return op.Reshape(op.MatMul(images, op.const(picks)), [group, len(picks) * inner, -1])


def _kernel_by_places(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """Return dw, place by place of the kernel: dy (M × N·O) times what the place sees of x (C × N·O), per group.

    What one place sees is gone before the next one's is cut; all at once are K times x, and K times more when joined.
    """
    outer, inner = _channels(w, group)
    assert outer is not None and inner is not None
    n, swap = len(windows.kernel), [1, 0, *range(2, len(windows.kernel) + 2)]
    data, spans = op.Transpose(x, perm=swap), (np.array(static(node, dy)) - 1) * windows.strides + 1
    behind = np.maximum(0, spans + windows.extents - 1 - static(node, x) - windows.begin)
    if any(windows.begin) or any(behind):
        data = op.Pad(data, [0, 0, *windows.begin, 0, 0, *behind])
    turned, parts = op.Transpose(dy, perm=swap), list[Value]()
    rows = op.Reshape(turned, [outer, -1] if group == 1 else [group, outer, -1])
    if group > 1 and outer * inner > 1:
        rows = op.Transpose(rows, perm=[0, 2, 1])
    for place in np.ndindex(*windows.kernel):
        start = place * windows.dilations
        seen = op.Slice(data, start, start + spans, range(2, n + 2), windows.strides)
        if group == 1:
            part = op.Gemm(rows, op.Reshape(seen, [inner, -1]), transB=1)
        elif outer * inner == 1:  # of long lines; a product of one row and one column takes six times as long
            part = op.ReduceSum(seen * turned, [*range(1, n + 2)], keepdims=0)
        else:
            part = op.MatMul(op.Reshape(seen, [group, inner, -1]), rows)
        parts.append(op.Reshape(part, [outer, 1, inner] if group == 1 else [group, 1, inner, outer]))
    dw = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)
    if group == 1:
        return op.Transpose(op.Reshape(dw, [outer, *windows.kernel, inner]), perm=[0, n + 1, *range(1, n + 1)])
    dw = op.Reshape(dw, [group, *windows.kernel, inner, outer])
    dw = op.Transpose(dw, perm=[0, n + 2, n + 1, *range(1, n + 1)])
    return op.Reshape(dw, [group * outer, inner, *windows.kernel])


def _kernel_by_lines(op: Backward, node: Node, x: Value, dy: Value, windows: Window, group: int) -> Value:
    """Return a depthwise dw by products of lines, which lie along the last axis.

    The lines of x that a row of the kernel sees (C × N·O × W), turned, times those of dy (C × N·O × V) say what each
    place of a line gives with each of the other's, Σ x[w] · dy[v]; a place of the kernel is the sum of some of them.
    """
    assert x.dtype is not None
    sizes, counts, n = static(node, x), static(node, dy), len(windows.kernel)
    *heights, width = windows.kernel
    starts = np.arange(counts[-1]) * windows.strides[-1] - windows.begin[-1]
    at = starts[:, None] + np.arange(width) * windows.dilations[-1]  # [V, K]: what the place sees
    picks = (np.arange(sizes[-1])[:, None, None] == at).astype(x.dtype.numpy())  # [W, V, K]
    picked = op.const(picks.reshape(-1, width))
    swap, axes = [1, 0, *range(2, n + 2)], range(2, n + 1)
    data, lines = op.Transpose(x, perm=swap), op.Reshape(op.Transpose(dy, perm=swap), [group, -1, counts[-1]])
    steps, spans = windows.strides[:-1], (np.array(counts[:-1]) - 1) * windows.strides[:-1] + 1
    behind = np.maximum(0, spans + windows.extents[:-1] - 1 - sizes[:-1] - windows.begin[:-1])
    if any(windows.begin[:-1]) or any(behind):
        data = op.Pad(data, [0, 0, *windows.begin[:-1], 0, 0, 0, *behind, 0])
    parts = []
    for place in np.ndindex(*heights):
        start = place * windows.dilations[:-1]
        seen = op.Slice(data, start, start + spans, axes, steps) if heights else data
        seen = op.Transpose(op.Reshape(seen, [group, -1, sizes[-1]]), perm=[0, 2, 1])
        products = op.Reshape(op.MatMul(seen, lines), [group, sizes[-1] * counts[-1]])
        parts.append(op.MatMul(products, picked))
    dw = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)
    return op.Reshape(dw, [group, 1, *windows.kernel])


def _bias(op: Backward, dy: Value) -> Value:
    return op.sum(dy, [0, *range(2, ranked(dy).rank())])


def _transposed_window(node: Node) -> tuple[Window, Ints]:
    """Return the windows that a ConvTranspose slides over its output, and what its output has beyond the last one.

    A wanted size or auto_pad decides the pads; more than there is to pad is never taken away, as onnxruntime.
    """
    plain, mode, sizes = unpadded(node), auto_pad(node), spatial(node.inputs[0])
    n, strides = len(plain.kernel), plain.strides
    extra = np.array(node.attributes.get_ints("output_padding", [0] * n))
    wanted = node.attributes.get_ints("output_shape", ())[-n:]
    if not wanted and not mode.startswith("SAME"):
        pads = node.attributes.get_ints("pads", plain.pads) if mode == "NOTSET" else plain.pads
        return replace(plain, pads=np.array(pads)), extra
    if wanted and None in sizes:
        raise not_static(node, node.inputs[0], f"spatial axis {sizes.index(None)}, which output_shape needs,")
    totals = plain.extents - strides + extra  # the output of SAME is stride · size
    if wanted:
        totals += strides * static(node, node.inputs[0]) - wanted
    return replace(plain, pads=halves(np.maximum(0, totals), mode)), extra + np.maximum(0, -totals)


def _left_over(windows: Window, sizes: list[int | None]) -> list[int | None]:
    """Return how many places at the end of each padded axis no window reaches; None where the size is not static."""
    rests = zip(sizes, windows.strides, windows.begin + windows.end - windows.extents, strict=True)
    return [0 if s == 1 else None if size is None else int((size + rest) % s) for size, s, rest in rests]


def _channels(w: Value, group: int) -> tuple[int | None, int | None]:
    """Return how many kernels a group has, and how many channels each kernel; None where not static."""
    outer, inner = ranked(w)[:2]
    return outer // group if isinstance(outer, int) else None, inner if isinstance(inner, int) else None


def _attributes(windows: Window, group: int) -> dict[str, Any]:
    plain = {"strides": (windows.strides, 1), "dilations": (windows.dilations, 1), "pads": (windows.pads, 0)}
    attributes = {name: values.tolist() for name, (values, usual) in plain.items() if any(values != usual)}
    return {**attributes, **({"group": group} if group != 1 else {})}


def _behind(op: Backward, head: list[int], x: Value) -> Value:
    """Return the shape `head` followed by x's spatial sizes."""
    sizes = spatial(x)
    if None not in sizes:
        return op.ints([*head, *(s for s in sizes if s is not None)])
    return op.Concat(head, op.Slice(op.Shape(x), [2], [FAR]), axis=0)


def _cut(op: Backward, gradient: Value, x: Value) -> Value:
    """Return the part of a gradient from the origin on that has x's shape."""
    return op.Slice(gradient, [0] * ranked(x).rank(), op.shape(x))


RULES: Rules = {
    "Col2Im": col2im,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
}
