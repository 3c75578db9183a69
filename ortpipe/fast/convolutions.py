"""A pass over an epoch: gradients of convolutions as products of matrices and as plain convolutions.

derive writes dw, the gradient of the kernels, as a convolution of x whose kernels are dy, and dx as a transposed
convolution. Where the sizes are known, other forms take half of the time or less.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ortpipe.autodiff import FAR, Window
from ortpipe.fast.epoch import EpochGraph
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import rewrite


class KernelGradient(NamedTuple):
    """The parts of dw[m, c, j] = Σₙₒ dy[n, m, o] · x[n, c, o · stride − begin + j · dilation], and their sizes."""

    x: ir.Value
    dy: ir.Value
    windows: Window
    group: int
    outer: int  # kernels per group
    inner: int  # channels per kernel
    sizes: list[int]  # of an image of x
    counts: list[int]  # of an image of dy


def convolution_gradients(epoch: EpochGraph) -> None:
    """Write the gradients of convolutions in faster forms."""
    with_faster_convolutions(epoch.model)


def with_faster_convolutions(model: ir.Model) -> None:
    """Write the gradients of convolutions of known sizes in faster forms, and remove the nodes of the slower ones."""
    table = {"Transpose": _kernel_gradient, "ConvTranspose": _input_gradient}
    rewrite(model.graph, table, nodes=list(model.graph.all_nodes()))
    RemoveUnusedNodesPass()(model)


def find_kernel_gradient(node: ir.Node) -> KernelGradient | None:
    """Return the parts of a kernel gradient as derive writes it, with its last node; else None."""
    dw = _static(node.outputs[0])
    swap = [1, 0, *range(2, len(dw))]
    conv = _maker(node.inputs[0])
    if node.op_type != "Transpose" or not dw or _axes(node) != swap or conv is None:
        return None
    if conv.op_type == "Slice":
        starts, steps = query.constant(conv.inputs[1]), conv.inputs[4:]
        conv = None if starts is None or starts.any() or steps else _maker(conv.inputs[0])
    if conv is None or conv.op_type != "Conv" or conv.domain or len(conv.inputs) > 2 or "auto_pad" in conv.attributes:
        return None
    group, kernels = conv.attributes.get_int("group", 1), _maker(conv.inputs[1])
    dy = kernels.inputs[0] if kernels is not None and kernels.op_type == "Transpose" else None
    x = _images(conv.inputs[0], group, swap)
    image, result = _static(x), _static(dy)
    if x is None or dy is None or kernels is None or _axes(kernels) != swap or not image or not result:
        return None
    ones = [1] * len(dw[2:])
    strides, dilations = (np.array(conv.attributes.get_ints(name, ones)) for name in ("dilations", "strides"))
    pads = np.array(conv.attributes.get_ints("pads", [0] * 2 * len(ones)))
    windows = Window(np.array(dw[2:]), strides, dilations, pads)
    return KernelGradient(x, dy, windows, group, dw[0] // group, dw[1], image[2:], result[2:])


def _images(data: ir.Value | None, group: int, swap: Sequence[int]) -> ir.Value | None:
    """Return the x whose images are the channels of `data` (per group), or None."""
    node = _maker(data)
    if group == 1:
        return node.inputs[0] if node is not None and node.op_type == "Transpose" and _axes(node) == swap else None
    turned = _maker(node.inputs[0]) if node is not None and node.op_type == "Reshape" else None
    split = _maker(turned.inputs[0]) if turned is not None and turned.op_type == "Transpose" else None
    if turned is None or split is None or split.op_type != "Reshape":
        return None
    [images, channels, *sizes] = _static(split.inputs[0]) or [0, 0]
    inner = channels // group
    right = _static(split.outputs[0]) == [images, group, inner, *sizes] and _axes(turned)[:3] == [2, 1, 0]
    return split.inputs[0] if right and _static(data) == [inner, group * images, *sizes] else None


def _maker(value: ir.Value | None) -> ir.Node | None:
    return value.producer() if value is not None else None


def _axes(node: ir.Node) -> list[int]:
    return [*node.attributes.get_ints("perm", ())]


def _static(value: ir.Value | None) -> list[int]:
    """Return the sizes of a value of three axes or more; [] if one is unknown or 0."""
    sizes = [size for size in query.sizes(value) or [] if size]
    return sizes if value is not None and value.shape is not None and len(sizes) == value.shape.rank() > 2 else []


def _kernel_gradient(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    if (parts := find_kernel_gradient(node)) is None:
        return None
    places, depthwise = parts.windows.kernel.prod(), parts.group > 1 and parts.outer == parts.inner == 1
    if places == 1 and not any(parts.windows.pads) and not depthwise and math.prod(parts.counts) >= 16:
        return [_by_images(op, parts)]  # smaller images would be many small products
    if depthwise and 1 < places <= THRESHOLDS.gradient_places and parts.sizes[-1] <= THRESHOLDS.gradient_line:
        return [_by_lines(op, parts)]
    if parts.group == 1 and all(parts.windows.strides == 1) and _shifts_pay(parts):
        return [_by_shifts(op, parts)]
    return [_by_places(op, parts)] if places <= THRESHOLDS.gradient_places else None


def _by_images(op: Builder, parts: KernelGradient) -> ir.Value:
    """Return dw of 1×1 kernels: Σₙ dy[n] (M × O) · x[n]ᵀ (O × C) per group, without a transposed copy of either."""
    x, group, n = parts.x, parts.group, len(parts.windows.kernel)
    if any(parts.windows.strides > 1):
        x = op.Slice(x, [0] * n, [FAR] * n, range(2, n + 2), parts.windows.strides)
    heads = [[0, group, count] if group > 1 else [0, 0] for count in (parts.outer, parts.inner)]
    rows, seen = (op.Reshape(v, [*head, -1]) for v, head in zip((parts.dy, x), heads, strict=True))
    turned = op.Transpose(seen, perm=[0, 1, 3, 2] if group > 1 else [0, 2, 1])
    total = op.ReduceSum(op.MatMul(rows, turned), [0], keepdims=0)
    return op.Reshape(total, [parts.outer * group, parts.inner, *parts.windows.kernel])


def _by_places(op: Builder, parts: KernelGradient) -> ir.Value:
    """Return dw one kernel element at a time: dy (M × N·O) times the values of x it covers (C × N·O), per group.

    One element's values are freed before the next one's are sliced; all at once take K times x, joined twice that.
    """
    x, dy, windows, group, outer, inner, sizes, counts = parts
    n, places = len(windows.kernel), windows.kernel.prod()
    turn, first = _order(n, short=sizes[-1] <= THRESHOLDS.short_line or windows.strides[-1] > 1)
    data, turned, axes = op.Transpose(x, perm=turn), op.Transpose(dy, perm=turn), range(first, first + n)
    spans = (np.array(counts) - 1) * windows.strides + 1
    data = _padded(op, data, first, windows.begin, spans + windows.extents - 1 - sizes - windows.begin)
    rows = op.Reshape(turned, [outer, -1] if group == 1 else [group, outer, -1])
    if group > 1 and outer * inner > 1:
        rows = op.Transpose(rows, perm=[0, 2, 1])
    joins, values = group == 1 and inner * places <= THRESHOLDS.joined_columns, list[ir.Value]()
    for place in np.ndindex(*windows.kernel):
        start = place * windows.dilations
        seen = op.Slice(data, start, start + spans, axes, windows.strides)
        if group == 1:
            part = op.Reshape(seen, [inner, -1])
            part = part if joins else op.Reshape(op.Gemm(rows, part, transB=1), [outer, 1, inner])
        else:
            part = _group_product(op, seen, turned, rows, parts)
        values.append(part)
    dw = _join(op, values, 0 if joins else 1)
    if group == 1:
        dw = op.Gemm(rows, dw, transB=1) if joins else dw
        dw = op.Reshape(dw, [outer, *windows.kernel, inner])
        return op.Transpose(dw, perm=[0, n + 1, *range(1, n + 1)])
    dw = op.Transpose(op.Reshape(dw, [group, *windows.kernel, inner, outer]), perm=[0, n + 2, n + 1, *range(1, n + 1)])
    return op.Reshape(dw, [group * outer, inner, *windows.kernel])


def _group_product(op: Builder, seen: ir.Value, turned: ir.Value, rows: ir.Value, parts: KernelGradient) -> ir.Value:
    _, _, windows, group, outer, inner, _, _ = parts
    if outer * inner == 1:  # a sum of long lines: the product of one row and one column takes six times as long
        product = op.ReduceSum(op.Mul(seen, turned), [*range(1, len(windows.kernel) + 2)], keepdims=0)
    else:
        product = op.MatMul(op.Reshape(seen, [group, inner, -1]), rows)
    return op.Reshape(product, [group, 1, inner, outer])


def _by_shifts(op: Builder, parts: KernelGradient) -> ir.Value:
    """Return dw, for strides of 1, as products of shifted copies: of dy per kernel row, of x per kernel column.

    dw[m, c, i, j] = Σₙᵣᵥ dy[n, m, r + begin₀ − i · dilation₀, v] · x[n, c, r, v − begin₁ + j · dilation₁]

    The rows r are those of x, the columns v those of dy, both padded with zeros.
    """
    x, dy, windows, _, outer, inner, sizes, counts = parts
    n, is_row = len(windows.kernel), np.arange(len(windows.kernel)) == 0
    common = np.where(is_row, sizes, counts)
    turn, first = _order(n, short=sizes[-1] <= THRESHOLDS.short_line)

    def copies(data: ir.Value, channels: int, sizes: Sequence[int], starts: np.ndarray) -> list[ir.Value]:
        turned, values = op.Transpose(data, perm=turn), []
        begin = np.maximum(0, -starts.min(axis=0))
        padded = _padded(op, turned, first, begin, (starts + common - sizes).max(axis=0))
        for start in starts:
            whole = not np.any(start) and all(np.array(sizes) == common)
            at = start + begin
            part = turned if whole else op.Slice(padded, at, at + common, range(first, first + n))
            values.append(op.Reshape(part, [channels, -1]))
        return values

    places = np.array([*np.ndindex(*windows.kernel)]) * windows.dilations - windows.begin
    row = windows.kernel[1:].prod()
    rows = copies(dy, outer, counts, np.where(is_row, -places[::row], 0))
    columns = _join(op, copies(x, inner, sizes, np.where(is_row, 0, places[:row])), 0)
    dw = _join(op, [op.Reshape(op.Gemm(part, columns, transB=1), [outer, 1, -1]) for part in rows], 1)
    dw = op.Reshape(dw, [outer, *windows.kernel, inner])
    return op.Transpose(dw, perm=[0, n + 1, *range(1, n + 1)])  # ten times as fast as moving two axes


def _shifts_pay(parts: KernelGradient) -> bool:
    """Return whether copies per row and column are fewer than per element."""
    height, row = parts.windows.kernel[0], parts.windows.kernel[1:].prod()
    return bool(height * parts.outer + row * parts.inner <= height * row * parts.inner)


def _by_lines(op: Builder, parts: KernelGradient) -> ir.Value:
    """Return a depthwise dw by products of lines along the last axis.

    The lines of x covered by a kernel row (C × N·O × W), transposed, times those of dy (C × N·O × V) give the products
    of all pairs of elements, Σ x[w] · dy[v]; each dw is the sum of some of them.
    """
    x, dy, windows, group, _, _, sizes, counts = parts
    assert x.dtype is not None
    n, (*heights, width) = len(windows.kernel), windows.kernel
    starts = np.arange(counts[-1]) * windows.strides[-1] - windows.begin[-1]
    columns = starts[:, None] + np.arange(width) * windows.dilations[-1]  # [V, K]: the column of x at each place
    picks = (np.arange(sizes[-1])[:, None, None] == columns).astype(x.dtype.numpy())  # [W, V, K]
    selection = op.const(picks.reshape(-1, width))
    swap, axes = [1, 0, *range(2, n + 2)], range(2, n + 1)
    data, lines = op.Transpose(x, perm=swap), op.Reshape(op.Transpose(dy, perm=swap), [group, -1, counts[-1]])
    steps, spans = windows.strides[:-1], (np.array(counts[:-1]) - 1) * windows.strides[:-1] + 1
    begin, end = windows.begin[:-1], spans + windows.extents[:-1] - 1 - sizes[:-1] - windows.begin[:-1]
    data = _padded(op, data, 2, [*begin, 0], [*end, 0])
    values = []
    for place in np.ndindex(*heights):
        start = place * windows.dilations[:-1]
        seen = op.Slice(data, start, start + spans, axes, steps) if heights else data
        seen = op.Transpose(op.Reshape(seen, [group, -1, sizes[-1]]), perm=[0, 2, 1])
        products = op.Reshape(op.MatMul(seen, lines), [group, sizes[-1] * counts[-1]])
        values.append(op.MatMul(products, selection))
    return op.Reshape(_join(op, values, 1), [group, 1, *windows.kernel])


def _order(n: int, *, short: bool) -> tuple[list[int], int]:
    """Return the order of axes with channels in front, and the place of the first spatial axis.

    If lines are short, the batch is the last axis, so that longer runs are copied.
    """
    return ([1, *range(2, n + 2), 0], 1) if short else ([1, 0, *range(2, n + 2)], 2)


def _padded(op: Builder, data: ir.Value, first: int, begin: ArrayLike, end: ArrayLike) -> ir.Value:
    """Return a value with zeros around its spatial axes."""
    pads = np.maximum(0, np.array([begin, end]))
    return op.Pad(data, [v for p in pads for v in np.insert([0, 0], first, p)]) if pads.any() else data


def _join(op: Builder, values: Sequence[ir.Value], axis: int) -> ir.Value:
    return values[0] if len(values) == 1 else op.Concat(*values, axis=axis)


def _input_gradient(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Rewrite a transposed convolution, for strides of 1, as a convolution with flipped kernels.

    Twice as fast as a grouped ConvTranspose, which onnxruntime computes group by group. With strides, dy would have to
    be filled with zeros, and ConvTranspose is two to three times as fast. A 1×1 kernel is a plain product.
    """
    dy, w, *bias = node.inputs
    image, kernel, attributes = _static(node.outputs[0]), _static(w), as_convolution(node)
    if dy is None or w is None or not image or not kernel or attributes is None:
        return None
    group, (outer, channels, *places), n = node.attributes.get_int("group", 1), kernel, len(kernel) - 2
    few = image[0] * math.prod(image[2:]) < THRESHOLDS.flipped_places
    if group == 1 < math.prod(places) and (outer > channels or few):
        return None
    pads = np.array(attributes["pads"])
    if pads.min() < 0:  # x is padded by more than a window
        ends = np.where(pads[n:] < 0, pads[n:], FAR)
        dy = op.Slice(dy, np.maximum(-pads[:n], 0), ends, range(2, n + 2))
    attributes["pads"] = np.maximum(pads, 0).tolist()
    return [op.Conv(dy, flipped(op, w, group), *bias, **{k: v for k, v in attributes.items() if v}, group=group)]


def as_convolution(node: ir.Node) -> dict[str, list[int]] | None:
    """Return dilations and pads of the Conv with flipped kernels that equals a ConvTranspose; None if none does."""
    attributes, kernel = node.attributes, _static(node.inputs[1])
    plain = {"kernel_shape", "strides", "dilations", "pads", "group"}.issuperset(attributes)
    if not kernel or not plain or set(attributes.get_ints("strides", [1])) != {1}:
        return None
    n = len(kernel) - 2
    dilations, pads = attributes.get_ints("dilations", [1] * n), attributes.get_ints("pads", [0] * 2 * n)
    reach = [(k - 1) * d for k, d in zip(kernel[2:], dilations, strict=True)]
    return {"dilations": [*dilations], "pads": [r - p for r, p in zip(reach * 2, pads, strict=True)]}


def flipped(op: Builder, w: ir.Value, group: int) -> ir.Value:
    """Return kernels [O, I, …] flipped along each spatial axis, kernels and channels swapped within each group."""
    outer, inner, *places = _static(w)
    n = len(places)
    if group == 1 and math.prod(places) == 1:
        return op.Transpose(w, perm=[1, 0, *range(2, n + 2)])
    if group == 1:  # place by place: without moving them, large kernels would take up to a quarter of the whole time
        lines = op.Slice(op.Transpose(op.Reshape(w, [0, 0, -1]), perm=[2, 1, 0]), [-1], [-FAR], [0], [-1])
        return op.Reshape(op.Transpose(lines, perm=[1, 2, 0]), [0, 0, *places])
    kernels = op.Reshape(w, [group, outer // group, inner, *places])
    kernels = op.Transpose(kernels, perm=[0, 2, 1, *range(3, n + 3)])
    kernels = op.Reshape(kernels, [group * inner, outer // group, *places])
    if axes := [i + 2 for i, k in enumerate(places) if k > 1]:
        last, first = ([v] * len(axes) for v in (-1, -FAR))
        kernels = op.Slice(kernels, last, first, axes, last)
    return kernels
