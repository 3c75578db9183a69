"""Convolution and its transpose. Each one's input gradient is the other; both share one kernel gradient."""

import itertools
import math
from typing import Any

from onnx_ir import Node, Value

from ortpipe.stages.derive.backward import Backward, Gradients, Rules
from ortpipe.stages.derive.dimensions import ranked
from ortpipe.stages.derive.rules.windows import (
    FAR,
    Window,
    auto_pad,
    halves,
    not_static,
    spatial,
    static,
    unpadded,
    window,
)

# Measured on onnxruntime 1.19 (CPU): up to a 3×3 kernel, cutting x into columns for one matrix product takes half
# the time of a convolution whose kernel is dy; from 5×5 on the copies cost more than they save.
COLUMNS = 9


def conv(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """Conv y = x ⋆ w + b: dx = dy transposed-convolved with w, dw = x ⋆ dy, db = Σ dy."""
    windows, group = window(node), node.attributes.get_int("group", 1)
    dx = _spread(op, dy, w, x, windows) if group == 1 else _spread_groups(op, node, dy, w, x, windows, group)
    return [dx, _kernel(op, node, x, dy, w, windows, group), _bias(op, dy) if b is not None else None]


def conv_transpose(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """ConvTranspose: dx = dy ⋆ w, dw = dy ⋆ x (the kernel gradient of that convolution), db = Σ dy."""
    group, (windows, extra) = node.attributes.get_int("group", 1), _transposed_window(node)
    dx = op.Conv(dy, w, **_attributes(windows, group))
    if any(e >= s for e, s in zip(extra, windows.strides, strict=True)):
        dx = _cut(op, dx, x)  # what lies beyond the last window came from no input
    return [dx, _kernel(op, node, dy, x, w, windows, group), _bias(op, dy) if b is not None else None]


def _spread(op: Backward, dy: Value, w: Value, x: Value, windows: Window) -> Value:
    """Return dx by ConvTranspose; output_padding is what the stride left over at the end of x."""
    left = _left_over(windows, spatial(x))
    padding = [s - 1 if rest is None else rest for rest, s in zip(left, windows.strides, strict=True)]
    extra = {"output_padding": padding} if any(padding) else {}
    dx = op.ConvTranspose(dy, w, **_attributes(windows, 1), **extra)
    return _cut(op, dx, x) if None in left else dx


def _spread_groups(op: Backward, node: Node, dy: Value, w: Value, x: Value, windows: Window, group: int) -> Value:
    """Return dx by a grouped Conv of dy with flipped kernels, dy spread by zeros where the stride is not 1.

    Twice as fast as a grouped ConvTranspose, which onnxruntime computes group by group (and onnx.reference wrongly).
    """
    outer = _channels(w, group)[0]
    if outer is None:
        raise not_static(node, w, "the first axis")
    n, strides = len(windows.kernel), windows.strides
    left = [0 if s == 1 else rest for rest, s in zip(_left_over(windows, spatial(x)), strides, strict=True)]
    if any(s > 1 for s in strides):  # stride − 1 zeros behind every value of each spatial axis
        sizes = op.Mul(op.shape(dy), op.ints([1, 1, *strides]))
        after = [0, 0, *itertools.chain.from_iterable((0, s - 1) for s in strides)]
        dy = op.Pad(op.Unsqueeze(dy, op.ints(range(3, 2 * n + 2, 2))), op.ints([0] * len(after) + after))
        dy = op.Reshape(dy, sizes)
    reach = [e - 1 for e in windows.extents]
    begin = [r - b for r, b in zip(reach, windows.begin, strict=True)]
    end = [  # such an axis ends with s − 1 zeros already
        r - e + (0 if rest is None else rest - (s - 1))
        for r, e, rest, s in zip(reach, windows.end, left, strides, strict=True)
    ]
    if min(*begin, *end) < 0:  # x was padded by more than a window reaches
        ends = [e if e < 0 else FAR for e in end]
        dy = op.Slice(dy, op.ints([max(-b, 0) for b in begin]), op.ints(ends), op.ints(range(2, n + 2)))
    turned = op.Reshape(w, op.ints([group, outer, -1, *windows.kernel]))
    turned = op.Transpose(turned, perm=[0, 2, 1, *range(3, n + 3)])
    turned = op.Reshape(turned, op.ints([-1, outer, *windows.kernel]))
    flipped = [i + 2 for i, k in enumerate(windows.kernel) if k > 1]
    if flipped:
        last, first = [op.ints([v] * len(flipped)) for v in (-1, -FAR)]
        turned = op.Slice(turned, last, first, op.ints(flipped), last)
    pads = [tuple(max(p, 0) for p in half) for half in (begin, end)]
    dx = op.Conv(dy, turned, **_attributes(Window(windows.kernel, (1,) * n, windows.dilations, *pads), group))
    return _cut(op, dx, x) if None in left else dx


def _kernel(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """dw[m, c, j] = Σₙₒ dy[n, m, o] · x[n, c, o · stride − begin + j · dilation]."""
    sizes, counts = spatial(x), spatial(dy)
    if math.prod(windows.kernel) <= COLUMNS and None not in (*sizes, *counts, *_channels(w, group)):
        return _kernel_by_columns(op, node, x, dy, w, windows, group)
    n = len(windows.kernel)
    swap = [1, 0, *range(2, n + 2)]
    if group == 1:
        data = op.Transpose(x, perm=swap)
    else:  # the batch's images become the channels of a group, the group's channels become the batch
        data = op.Reshape(x, _behind(op, [0, group, -1], x))
        data = op.Transpose(data, perm=[2, 1, 0, *range(3, n + 3)])
        data = op.Reshape(data, _behind(op, [0, -1], x))
    swapped = Window(windows.kernel, windows.dilations, windows.strides, windows.begin, windows.end)
    dw = op.Conv(data, op.Transpose(dy, perm=swap), **_attributes(swapped, group))
    if any(s > 1 for s in windows.strides):  # rows that no window reached make it longer than the kernel
        dw = op.Slice(dw, op.ints([0] * n), op.ints(windows.kernel), op.ints(range(2, n + 2)))
    return op.Transpose(dw, perm=swap)


def _kernel_by_columns(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """Return dw as one matrix product per group: dy (M × N·O) with the columns of x (K·C × N·O), K kernel places."""
    outer, inner = _channels(w, group)
    assert outer is not None and inner is not None
    n, counts = len(windows.kernel), static(node, dy)
    swap = [1, 0, *range(2, n + 2)]
    data = op.Transpose(x, perm=swap)
    spans = [(c - 1) * s + 1 for c, s in zip(counts, windows.strides, strict=True)]
    sizes = zip(spans, windows.extents, static(node, x), windows.begin, strict=True)
    pads = [*windows.begin, *(max(0, span + extent - 1 - size - b) for span, extent, size, b in sizes)]
    if any(pads):
        data = op.Pad(data, op.ints([0, 0, *pads[:n], 0, 0, *pads[n:]]))
    axes, steps = op.ints(range(2, n + 2)), op.ints(windows.strides)
    columns = []
    for place in itertools.product(*map(range, windows.kernel)):
        starts = [p * d for p, d in zip(place, windows.dilations, strict=True)]
        ends = [b + span for b, span in zip(starts, spans, strict=True)]
        cut = op.Slice(data, op.ints(starts), op.ints(ends), axes, steps)
        columns.append(op.Reshape(cut, op.ints([group, inner, -1])))
    joined = columns[0] if len(columns) == 1 else op.Concat(*columns, axis=1)
    if group == 1:
        rows = op.Reshape(op.Transpose(dy, perm=swap), op.ints([outer, -1]))
        dw = op.Gemm(rows, op.Squeeze(joined, op.ints([0])), transB=1)
        dw = op.Reshape(dw, op.ints([outer, *windows.kernel, inner]))
        return op.Transpose(dw, perm=[0, n + 1, *range(1, n + 1)])
    rows = op.Transpose(op.Reshape(dy, op.ints([0, group, outer, -1])), perm=[1, 0, 3, 2])
    dw = op.MatMul(joined, op.Reshape(rows, op.ints([group, -1, outer])))
    dw = op.Reshape(dw, op.ints([group, *windows.kernel, inner, outer]))
    dw = op.Transpose(dw, perm=[0, n + 2, n + 1, *range(1, n + 1)])
    return op.Reshape(dw, op.ints([group * outer, inner, *windows.kernel]))


def _bias(op: Backward, dy: Value) -> Value:
    return op.sum(dy, [0, *range(2, ranked(dy).rank())])


def _transposed_window(node: Node) -> tuple[Window, list[int]]:
    """Return the windows that a ConvTranspose slides over its output, and what its output has beyond the last one.

    A wanted size or auto_pad decides the pads; more than there is to pad is never taken away, as onnxruntime.
    """
    plain, mode, sizes = unpadded(node), auto_pad(node), spatial(node.inputs[0])
    n, strides = len(plain.kernel), plain.strides
    extra = list(node.attributes.get_ints("output_padding", (0,) * n))
    wanted = node.attributes.get_ints("output_shape", ())[-n:]
    if not wanted and not mode.startswith("SAME"):
        pads = tuple(node.attributes.get_ints("pads", (0,) * 2 * n)) if mode == "NOTSET" else (0,) * 2 * n
        return Window(plain.kernel, strides, plain.dilations, pads[:n], pads[n:]), extra
    if wanted and None in sizes:
        raise not_static(node, node.inputs[0], f"spatial axis {sizes.index(None)}, which output_shape needs,")
    totals = []
    for i, size in enumerate(sizes):
        total = plain.extents[i] - strides[i] + extra[i]  # the output of SAME is stride · size
        if wanted and size is not None:
            total = strides[i] * size + total - wanted[i]
        totals.append(max(0, total))
        extra[i] += max(0, -total)
    return Window(plain.kernel, strides, plain.dilations, *halves(totals, mode)), extra


def _left_over(windows: Window, sizes: list[int | None]) -> list[int | None]:
    """Return how many places at the end of each padded axis no window reaches; None where the size is not static."""
    return [
        0 if s == 1 else None if size is None else (size + b + e - extent) % s
        for size, s, b, e, extent in zip(
            sizes, windows.strides, windows.begin, windows.end, windows.extents, strict=True
        )
    ]


def _channels(w: Value, group: int) -> tuple[int | None, int | None]:
    """Return how many kernels a group has, and how many channels each kernel; None where not static."""
    outer, inner = ranked(w)[:2]
    return outer // group if isinstance(outer, int) else None, inner if isinstance(inner, int) else None


def _attributes(windows: Window, group: int) -> dict[str, Any]:
    n = len(windows.kernel)
    attributes: dict[str, Any] = {
        "strides": [*windows.strides],
        "dilations": [*windows.dilations],
        "pads": windows.pads,
    }
    plain = {"strides": [1] * n, "dilations": [1] * n, "pads": [0] * 2 * n}
    return {k: v for k, v in attributes.items() if v != plain[k]} | ({"group": group} if group != 1 else {})


def _behind(op: Backward, head: list[int], x: Value) -> Value:
    """Return the shape `head` followed by x's spatial sizes."""
    sizes = spatial(x)
    if None not in sizes:
        return op.ints([*head, *(s for s in sizes if s is not None)])
    return op.Concat(op.ints(head), op.Slice(op.Shape(x), op.ints([2]), op.ints([FAR])), axis=0)


def _cut(op: Backward, gradient: Value, x: Value) -> Value:
    """Return the part of a gradient from the origin on that has x's shape."""
    return op.Slice(gradient, op.ints([0] * ranked(x).rank()), op.shape(x))


RULES: Rules = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
}
