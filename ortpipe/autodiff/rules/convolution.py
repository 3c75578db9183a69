"""Convolution and its transpose: the input gradient of one is the other, and they share the kernel gradient."""

from dataclasses import replace
from typing import Any

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
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


def conv(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """Conv y = x ⋆ w + b: dx = dy transposed-convolved with w, dw = x ⋆ dy, db = Σ dy."""
    windows, group = window(node), node.attributes.get_int("group", 1)
    dx = _input_gradient(op, dy, w, x, windows, group)
    return [dx, _kernel_gradient(op, x, dy, w, windows, group), _bias(op, dy) if b is not None else None]


def conv_transpose(op: Backward, node: Node, dy: Value, x: Value, w: Value, b: Value | None = None) -> Gradients:
    """ConvTranspose: dx = dy ⋆ w, dw = dy ⋆ x (the kernel gradient of that convolution), db = Σ dy."""
    group, (windows, extra) = node.attributes.get_int("group", 1), _transposed_window(node)
    dx = op.Conv(dy, w, **attributes_of(windows, group))
    if any(extra >= windows.strides):
        dx = _crop(op, dx, x)  # pixels beyond the last window depend on no input
    return [dx, _kernel_gradient(op, dy, x, w, windows, group), _bias(op, dy) if b is not None else None]


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


def _input_gradient(op: Backward, dy: Value, w: Value, x: Value, windows: Window, group: int) -> Value:
    """Return dx by ConvTranspose; output_padding covers the end of x that no window reaches."""
    unreached = _unreached_places(windows, spatial(x))
    padding = [int(s) - 1 if places is None else places for places, s in zip(unreached, windows.strides, strict=True)]
    extra = {"output_padding": padding} if any(padding) else {}
    dx = op.ConvTranspose(dy, w, **attributes_of(windows, group), **extra)
    return _crop(op, dx, x) if None in unreached else dx


def _kernel_gradient(op: Backward, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """Return dw[m, c, j] = Σₙₒ dy[n, m, o] · x[n, c, o · stride − begin + j · dilation], a Conv with dy as kernels."""
    n = len(windows.kernel)
    swap = [1, 0, *range(2, n + 2)]
    if group == 1:
        data = op.Transpose(x, perm=swap)
    else:  # the batch's images become the channels of a group, the group's channels become the batch
        depth = ranked(x)[1]
        head = [0, group, depth // group if isinstance(depth, int) else -1]
        data = op.Reshape(x, _with_spatial_sizes(op, head, x))
        data = op.Transpose(data, perm=[2, 1, 0, *range(3, n + 3)])
        data = op.Reshape(data, _with_spatial_sizes(op, [0, -1], x))
    swapped = replace(windows, strides=windows.dilations, dilations=windows.strides)
    dw = op.Conv(data, op.Transpose(dy, perm=swap), **attributes_of(swapped, group))
    if any(windows.strides > 1):  # pixels that no window reaches make the result longer than the kernel
        dw = op.Slice(dw, [0] * n, windows.kernel, range(2, n + 2))
    dw = op.Transpose(dw, perm=swap)
    if None in (*spatial(x), *spatial(dy)) and w.shape is not None and w.shape.is_static():
        dw = op.Reshape(dw, w.shape.numpy())  # cannot be inferred from free axes, but train's Scan needs it
    return dw


def _with_spatial_sizes(op: Backward, head: list[int], x: Value) -> Value:
    """Return the shape `head` followed by x's spatial sizes."""
    sizes = spatial(x)
    if None not in sizes:
        return op.const(np.array([*head, *(s for s in sizes if s is not None)], np.int64))
    return op.Concat(head, op.Slice(op.Shape(x), [2], [FAR]), axis=0)


def attributes_of(windows: Window, group: int) -> dict[str, Any]:
    """Return the attributes of a Conv with these windows, without default values."""
    settings = {"strides": (windows.strides, 1), "dilations": (windows.dilations, 1), "pads": (windows.pads, 0)}
    attributes = {name: values.tolist() for name, (values, default) in settings.items() if any(values != default)}
    return {**attributes, **({"group": group} if group != 1 else {})}


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
