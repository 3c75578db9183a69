"""Convolution and its transpose: the input gradient of one is the other, and they share the kernel gradient."""

import math
from dataclasses import replace

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules, ranked
from ortpipe.autodiff.kernels import attributes_of, channels_of, kernel_gradient, turned
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

# With no more kernels than channels, a Conv with flipped kernels takes 0.55 to 1.1 of the time of a ConvTranspose for
# images from 8×8 on (on two threads 0.3 to 1), 0.75 to 0.95 for smaller ones of 128 channels and more (0.9 to 1.05).
LARGE, WIDE = 64, 128


def conv(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """Conv y = x ⋆ w + b: dx = dy transposed-convolved with w, dw = x ⋆ dy, db = Σ dy."""
    windows, group = window(node), node.attributes.get_int("group", 1)
    turns = group > 1 or windows.kernel.prod() == 1 or _is_large(node, x, *channels_of(w, group))
    turns = turns and all(windows.strides == 1)
    dx = (_input_by_turned_kernels if turns else _input_by_transpose)(op, node, dy, w, x, windows, group)
    return [dx, kernel_gradient(op, node, x, dy, w, windows, group), _bias(op, dy) if b is not None else None]


def _is_large(node: Node, x: Value, kernels: int | None, channels: int | None) -> bool:
    """Return whether images are large or deep, with no more kernels than channels; False if a size is not static."""
    if None in spatial(x) or kernels is None or channels is None:
        return False
    return kernels <= channels and (math.prod(static(node, x)) >= LARGE or channels >= WIDE)


def conv_transpose(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """ConvTranspose: dx = dy ⋆ w, dw = dy ⋆ x (the kernel gradient of that convolution), db = Σ dy."""
    group, (windows, extra) = node.attributes.get_int("group", 1), _transposed_window(node)
    dx = op.Conv(dy, w, **attributes_of(windows, group))
    if any(extra >= windows.strides):
        dx = _crop(op, dx, x)  # pixels beyond the last window depend on no input
    return [dx, kernel_gradient(op, node, dy, x, w, windows, group), _bias(op, dy) if b is not None else None]


def col2im(op: Backward, node: Node, dy: Value, x: Value, image: Value, block: Value) -> Gradients:
    """Col2Im sums columns into an image: dx = the columns of dy, computed as a convolution with unit kernels."""
    kernel = op.constant(block)
    if kernel is None or dy.dtype is None:
        raise not_static(node, block, "the block's shape")
    sizes = kernel.numpy()
    units = op.const(np.eye(sizes.prod(), dtype=dy.dtype.numpy()).reshape(-1, 1, *sizes))
    attributes = {n: node.attributes.get_ints(n) for n in ("dilations", "pads", "strides") if n in node.attributes}
    one_channel = op.Reshape(dy, op.Concat([-1, 1], image, axis=0))
    return [op.Reshape(op.Conv(one_channel, units, **attributes), op.shape(x))]


def _input_by_transpose(op: Backward, node: Node, dy: Value, w: Value, x: Value, windows: Window, group: int) -> Value:
    """Return dx by ConvTranspose; output_padding covers the end of x that no window reaches."""
    unreached = _unreached_places(windows, spatial(x))
    padding = [int(s) - 1 if places is None else places for places, s in zip(unreached, windows.strides, strict=True)]
    extra = {"output_padding": padding} if any(padding) else {}
    dx = op.ConvTranspose(dy, w, **attributes_of(windows, group), **extra)
    return _crop(op, dx, x) if None in unreached else dx


def _input_by_turned_kernels(
    op: Backward, node: Node, dy: Value, w: Value, x: Value, windows: Window, group: int
) -> Value:
    """Return dx, for strides of 1, by a Conv of dy with flipped kernels.

    Twice as fast as a grouped ConvTranspose, which onnxruntime computes group by group. With strides, dy would have to
    be filled with zeros, and ConvTranspose is two to three times as fast. A 1×1 kernel is a plain product: 1.1 to 2.5
    times as fast.
    """
    n = len(windows.kernel)
    begin, end = windows.extents - 1 - windows.begin, windows.extents - 1 - windows.end
    if min(*begin, *end) < 0:  # x is padded by more than a window
        dy = op.Slice(dy, np.maximum(-begin, 0), np.where(end < 0, end, FAR), range(2, n + 2))
    plain = replace(windows, pads=np.maximum([*begin, *end], 0))
    return op.Conv(dy, turned(op, node, w, windows, group), **attributes_of(plain, group))


def _bias(op: Backward, dy: Value) -> Value:
    return op.sum(dy, [0, *range(2, ranked(dy).rank())])


def _transposed_window(node: Node) -> tuple[Window, Ints]:
    """Return the windows of a ConvTranspose over its output, and the number of output positions beyond the last one.

    output_shape or auto_pad decides the pads; as in onnxruntime, they never become negative.
    """
    plain, mode, sizes = unpadded(node), auto_pad(node), spatial(node.inputs[0])
    n, strides = len(plain.kernel), plain.strides
    extra = np.array(node.attributes.get_ints("output_padding", [0] * n))
    output_sizes = node.attributes.get_ints("output_shape", ())[-n:]
    if not output_sizes and not mode.startswith("SAME"):
        pads = node.attributes.get_ints("pads", plain.pads) if mode == "NOTSET" else plain.pads
        return replace(plain, pads=np.array(pads)), extra
    if output_sizes and None in sizes:
        raise not_static(node, node.inputs[0], f"spatial axis {sizes.index(None)}, which output_shape needs,")
    totals = plain.extents - strides + extra  # the output of SAME is stride · size
    if output_sizes:
        totals += strides * static(node, node.inputs[0]) - output_sizes
    return replace(plain, pads=halves(np.maximum(0, totals), mode)), extra + np.maximum(0, -totals)


def _unreached_places(windows: Window, sizes: list[int | None]) -> list[int | None]:
    """Return how many positions at the end of each padded axis no window reaches; None if the size is not static."""
    axes = zip(sizes, windows.strides, windows.begin + windows.end - windows.extents, strict=True)
    return [0 if s == 1 else None if size is None else int((size + margin) % s) for size, s, margin in axes]


def _crop(op: Backward, gradient: Value, x: Value) -> Value:
    """Crop a gradient to x's shape, from the origin."""
    return op.Slice(gradient, [0] * ranked(x).rank(), op.shape(x))


RULES: Rules = {"Col2Im": col2im, "Conv": conv, "ConvTranspose": conv_transpose}
