"""A convolution's kernels: their gradient, and flipped kernels for the gradient of the input.

The code that runs the graph may have a faster way to compute either, so both can be found again in a graph.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, ranked
from ortpipe.autodiff.windows import FAR, Ints, Window, not_static, spatial, static
from ortpipe.graph.core import query

# Measured on onnxruntime 1.19 (CPU): up to a 3×3 kernel, one matrix product per kernel element takes less than half
# the time of a convolution whose kernel is dy; from 5×5 on, the copies cost more than they save.
PLACES = 9
# Joined into one product, the kernel elements are 1.3 to 4 times as fast for few channels or small images, and 1.2 to
# 1.6 times as slow from 16 channels of 16×16 on, where the product no longer fits the cache.
COLUMNS, CACHED = 32, 5000
# With the batch as the last axis, lines of up to 16 numbers are copied in longer runs: 1.1 to 2.4 times as fast.
SHORT = 16
# Copies per row and column take 0.75 to 1 of the time of copies per element, on two threads 0.5 to 0.8; with 5×5 and
# 7×7 kernels a half to a third of a convolution's. Images of 32 channels of 32×32 are too large for the cache.
IMAGE = 32768
# Up to 32 × 32 channels, one product for all rows is 5 % faster than one product per row.
JOINED = 1024
MARK = "ortpipe.kernel_gradient"  # in the metadata_props of the last node of a formula
# Depthwise, products of lines take half to a third of the time of elements up to 32 numbers, the same time with 64.
LINE = 64
# The nodes of `turned`, from last to first, with their axes.
TURNING = (("Reshape", ()), ("Transpose", (1, 2, 0)), ("Slice", ()), ("Transpose", (2, 1, 0)), ("Reshape", ()))


def kernel_gradient(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """Return dw[m, c, j] = Σₙₒ dy[n, m, o] · x[n, c, o · stride − begin + j · dilation]."""
    channels, places = channels_of(w, group), windows.kernel.prod()
    depthwise, static_channels = group > 1 and channels == (1, 1), None not in channels
    sizes, counts = spatial(x), spatial(dy)
    images = None in counts or math.prod(static(node, dy)) >= 16  # smaller images would be many small products
    if places == 1 and images and not any(windows.pads) and not depthwise and (static_channels or group == 1):
        return _by_images(op, x, dy, w, windows, group)
    if static_channels and None not in (*sizes, *counts):
        if depthwise and 1 < places <= PLACES and static(node, x)[-1] <= LINE:
            return _by_lines(op, node, x, dy, windows, group)
        if group == 1 and all(windows.strides == 1) and _shifts_pay(w, windows.kernel, static(node, x)):
            return _by_shifts(op, node, x, dy, w, windows)
        if places <= PLACES:
            return _by_places(op, node, x, dy, w, windows, group)
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
    if group == 1:
        _marked(dw, windows, swap)
    if None in (*sizes, *counts) and w.shape is not None and w.shape.is_static():
        dw = op.Reshape(dw, w.shape.numpy())  # cannot be inferred from free axes, but train's Scan needs it
    return dw


def _by_images(op: Backward, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """Return dw of 1×1 kernels: Σₙ dy[n] (M × O) · x[n]ᵀ (O × C) per group, without a transposed copy of either."""
    n, heads = len(windows.kernel), [[0, group, c] if group > 1 else [0, 0] for c in channels_of(w, group)]
    if any(windows.strides > 1):
        x = op.Slice(x, [0] * n, [FAR] * n, range(2, n + 2), windows.strides)
    rows, seen = (op.Reshape(v, [*head, -1]) for v, head in zip((dy, x), heads, strict=True))
    turned = op.Transpose(seen, perm=[0, 1, 3, 2] if group > 1 else [0, 2, 1])
    return op.reshape_like(op.sum(op.MatMul(rows, turned), [0]), w)


def _by_places(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window, group: int) -> Value:
    """Return dw one kernel element at a time: dy (M × N·O) times the values of x it covers (C × N·O), per group.

    One element's values are freed before the next one's are sliced; all at once take K times x, joined twice that.
    """
    outer, inner = channels_of(w, group)
    assert outer is not None and inner is not None
    n, sizes, places = len(windows.kernel), static(node, x), windows.kernel.prod()
    short = sizes[-1] <= SHORT or windows.strides[-1] > 1
    turn, first = ([1, *range(2, n + 2), 0], 1) if short else ([1, 0, *range(2, n + 2)], 2)
    data, turned, axes = op.Transpose(x, perm=turn), op.Transpose(dy, perm=turn), range(first, first + n)
    spans = (np.array(static(node, dy)) - 1) * windows.strides + 1
    end = np.maximum(0, spans + windows.extents - 1 - sizes - windows.begin)
    if any(windows.begin) or any(end):
        data = op.Pad(data, [v for pads in (windows.begin, end) for v in np.insert([0, 0], first, pads)])
    rows = op.Reshape(turned, [outer, -1] if group == 1 else [group, outer, -1])
    if group > 1 and outer * inner > 1:
        rows = op.Transpose(rows, perm=[0, 2, 1])
    joins = group == 1 and (inner * places <= COLUMNS or inner * places * math.prod(sizes) <= CACHED)
    parts = list[Value]()
    for place in np.ndindex(*windows.kernel):
        start = place * windows.dilations
        seen = op.Slice(data, start, start + spans, axes, windows.strides)
        if group == 1:
            part = op.Reshape(seen, [inner, -1])
            part = part if joins else op.Gemm(rows, part, transB=1)
        elif outer * inner == 1:  # a sum of long lines: the product of one row and one column takes six times as long
            part = op.ReduceSum(seen * turned, [*range(1, n + 2)], keepdims=0)
        else:
            part = op.MatMul(op.Reshape(seen, [group, inner, -1]), rows)
        parts.append(part if joins else op.Reshape(part, [outer, 1, inner] if group == 1 else [group, 1, inner, outer]))
    dw = _join(op, parts, 0 if joins else 1)
    if group == 1:
        dw = op.Gemm(rows, dw, transB=1) if joins else dw
        dw = op.Transpose(op.Reshape(dw, [outer, *windows.kernel, inner]), perm=[0, n + 1, *range(1, n + 1)])
        return _marked(dw, windows, turn)
    dw = op.Reshape(dw, [group, *windows.kernel, inner, outer])
    dw = op.Transpose(dw, perm=[0, n + 2, n + 1, *range(1, n + 1)])
    return op.Reshape(dw, [group * outer, inner, *windows.kernel])


def _by_shifts(op: Backward, node: Node, x: Value, dy: Value, w: Value, windows: Window) -> Value:
    """Return dw, for strides of 1, as products of shifted copies: of dy per kernel row, of x per kernel column.

    dw[m, c, i, j] = Σₙᵣᵥ dy[n, m, r + begin₀ − i · dilation₀, v] · x[n, c, r, v − begin₁ + j · dilation₁]

    The rows r are those of x, the columns v those of dy, both padded with zeros.
    """
    (outer, inner), n = channels_of(w, 1), len(windows.kernel)
    assert outer is not None and inner is not None
    sizes, counts = np.array(static(node, x)), np.array(static(node, dy))
    is_row = np.arange(n) == 0
    common = np.where(is_row, sizes, counts)
    turn, first = ([1, *range(2, n + 2), 0], 1) if sizes[-1] <= SHORT else ([1, 0, *range(2, n + 2)], 2)

    def copies(data: Value, channels: int, sizes: Ints, starts: Ints) -> list[Value]:
        turned, parts = op.Transpose(data, perm=turn), []
        pads = np.maximum(0, [-starts.min(axis=0), (starts + common - sizes).max(axis=0)])
        padded = op.Pad(turned, [v for p in pads for v in np.insert([0, 0], first, p)]) if np.any(pads) else turned
        for start in starts:
            whole = not np.any(start) and all(sizes == common)
            begin = start + pads[0]
            part = turned if whole else op.Slice(padded, begin, begin + common, range(first, first + n))
            parts.append(op.Reshape(part, [channels, -1]))
        return parts

    places = np.array([*np.ndindex(*windows.kernel)]) * windows.dilations - windows.begin
    row = windows.kernel[1:].prod()
    rows = copies(dy, outer, counts, np.where(is_row, -places[::row], 0))
    columns = _join(op, copies(x, inner, sizes, np.where(is_row, 0, places[:row])), 0)
    if outer * inner <= JOINED:
        dw = op.Gemm(_join(op, rows, 0), columns, transB=1)
        dw = op.Reshape(dw, [windows.kernel[0], outer, *windows.kernel[1:], inner])
        return _marked(op.Transpose(dw, perm=[1, n + 1, 0, *range(2, n + 1)]), windows, turn)
    dw = _join(op, [op.Reshape(op.Gemm(part, columns, transB=1), [outer, 1, -1]) for part in rows], 1)
    dw = op.Reshape(dw, [outer, *windows.kernel, inner])
    dw = op.Transpose(dw, perm=[0, n + 1, *range(1, n + 1)])  # ten times as fast as moving two axes
    return _marked(dw, windows, turn)


def _by_lines(op: Backward, node: Node, x: Value, dy: Value, windows: Window, group: int) -> Value:
    """Return a depthwise dw by products of lines along the last axis.

    The lines of x covered by a kernel row (C × N·O × W), transposed, times those of dy (C × N·O × V) give the products
    of all pairs of elements, Σ x[w] · dy[v]; each dw is the sum of some of them.
    """
    assert x.dtype is not None
    sizes, counts, n = static(node, x), static(node, dy), len(windows.kernel)
    *heights, width = windows.kernel
    starts = np.arange(counts[-1]) * windows.strides[-1] - windows.begin[-1]
    columns = starts[:, None] + np.arange(width) * windows.dilations[-1]  # [V, K]: the column of x at each place
    picks = (np.arange(sizes[-1])[:, None, None] == columns).astype(x.dtype.numpy())  # [W, V, K]
    selection = op.const(picks.reshape(-1, width))
    swap, axes = [1, 0, *range(2, n + 2)], range(2, n + 1)
    data, lines = op.Transpose(x, perm=swap), op.Reshape(op.Transpose(dy, perm=swap), [group, -1, counts[-1]])
    steps, spans = windows.strides[:-1], (np.array(counts[:-1]) - 1) * windows.strides[:-1] + 1
    end = np.maximum(0, spans + windows.extents[:-1] - 1 - sizes[:-1] - windows.begin[:-1])
    if any(windows.begin[:-1]) or any(end):
        data = op.Pad(data, [0, 0, *windows.begin[:-1], 0, 0, 0, *end, 0])
    parts = []
    for place in np.ndindex(*heights):
        start = place * windows.dilations[:-1]
        seen = op.Slice(data, start, start + spans, axes, steps) if heights else data
        seen = op.Transpose(op.Reshape(seen, [group, -1, sizes[-1]]), perm=[0, 2, 1])
        products = op.Reshape(op.MatMul(seen, lines), [group, sizes[-1] * counts[-1]])
        parts.append(op.MatMul(products, selection))
    dw = _join(op, parts, 1)
    return op.Reshape(dw, [group, 1, *windows.kernel])


def _shifts_pay(w: Value, kernel: Ints, sizes: list[int]) -> bool:
    """Return whether copies per row and column are fewer than per element, and those of an image fit the cache."""
    outer, inner = channels_of(w, 1)
    assert outer is not None and inner is not None
    row = kernel[1:].prod()
    return bool(kernel[0] * outer + row * inner <= kernel[0] * row * inner and inner * math.prod(sizes) < IMAGE)


def _join(op: Backward, parts: list[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


def _with_spatial_sizes(op: Backward, head: list[int], x: Value) -> Value:
    """Return the shape `head` followed by x's spatial sizes."""
    sizes = spatial(x)
    if None not in sizes:
        return op.ints([*head, *(s for s in sizes if s is not None)])
    return op.Concat(head, op.Slice(op.Shape(x), [2], [FAR]), axis=0)


def _marked(dw: Value, windows: Window, turn: Sequence[int]) -> Value:
    """Record the windows of this kernel gradient, and how x and dy were transposed for its products."""
    node = dw.producer()
    assert node is not None
    facts = {**{name: values.tolist() for name, values in asdict(windows).items()}, "turn": turn}
    node.metadata_props[MARK] = json.dumps(facts, default=int)
    return dw


def forget_kernel_gradients(nodes: Iterable[Node]) -> None:
    """Remove such records from a user's model: only those written by a rule are trusted."""
    for node in nodes:
        node.metadata_props.pop(MARK, None)


def find_kernel_gradient(node: Node) -> tuple[Value, Value, Window] | None:
    """Return x, dy and the windows if a node computes a kernel gradient in a known form, else None.

    The caller may have a faster way to compute Σₙₒ dy[n, m, o] · x[n, c, o · stride − begin + j · dilation].
    """
    if (mark := node.metadata_props.get(MARK)) is None:
        return None
    facts = json.loads(mark)
    turn, product = facts.pop("turn"), _back(node, {"Transpose", "Reshape", "Concat", "Slice"})
    if product is None or product.op_type not in ("Gemm", "Conv") or any(product.inputs[2:]):
        return None
    copied = {"Reshape", "Concat", "Slice", "Pad"}
    ends = [_back(v.producer() if v is not None else None, copied) for v in product.inputs[:2]]
    dy, x = (None if end is None or [*end.attributes.get_ints("perm", ())] != turn else end.inputs[0] for end in ends)
    if x is None or dy is None:
        return None
    parts = (x, dy) if product.op_type == "Gemm" else (dy, x)  # a Conv has dy as its kernels
    return *parts, Window(**{name: np.array(v) for name, v in facts.items()})


def _back(node: Node | None, through: set[str]) -> Node | None:
    """Return the first node of another type, following first inputs backwards."""
    while node is not None and node.op_type in through:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node


def turned(op: Backward, node: Node, w: Value, windows: Window, group: int) -> Value:
    """Return kernels flipped along each spatial axis, kernels and channels swapped: a Conv with them gives dx."""
    n = len(windows.kernel)
    if group == 1 and windows.kernel.prod() == 1:
        return op.Transpose(w, perm=[1, 0, *range(2, n + 2)])
    if group == 1:  # place by place: turned as they lie, large kernels would take up to a quarter of the whole time
        lines = op.Slice(op.Transpose(op.Reshape(w, [0, 0, -1]), perm=[2, 1, 0]), [-1], [-FAR], [0], [-1])
        return op.Reshape(op.Transpose(lines, perm=[1, 2, 0]), [0, 0, *windows.kernel])
    if (outer := channels_of(w, group)[0]) is None:
        raise not_static(node, w, "the first axis")
    kernels = op.Reshape(w, [group, outer, -1, *windows.kernel])
    kernels = op.Transpose(kernels, perm=[0, 2, 1, *range(3, n + 3)])
    kernels = op.Reshape(kernels, [-1, outer, *windows.kernel])
    if flipped := [i + 2 for i, k in enumerate(windows.kernel) if k > 1]:
        last, first = ([v] * len(flipped) for v in (-1, -FAR))
        kernels = op.Slice(kernels, last, first, flipped, last)
    return kernels


def before_turning(w: Value) -> Value | None:
    """Return the v whose 2-D kernels `turned` flipped without groups, w[o, c, i] = v[c, o, −1 − i], or None."""
    x: Value | None = w
    kernels, channels, *places = query.sizes(w) or []
    lines = [channels, kernels, math.prod(size or 0 for size in places)]
    for op_type, perm in TURNING:
        node = x.producer() if x is not None else None
        if node is None or node.op_type != op_type or (*node.attributes.get_ints("perm", ()),) != perm:
            return None
        spans = [span.tolist() for span in map(query.constant, node.inputs[1:]) if span is not None]
        if op_type == "Slice" and spans != [[-1], [-FAR], [0], [-1]]:
            return None
        if perm == (2, 1, 0) and query.sizes(node.inputs[0]) != lines:
            return None
        x = node.inputs[0]
    return x if query.sizes(x) == [channels, kernels, *places] else None


def channels_of(w: Value, group: int) -> tuple[int | None, int | None]:
    """Return the number of kernels per group, and of channels per kernel; None if not static."""
    outer, inner = ranked(w)[:2]
    return outer // group if isinstance(outer, int) else None, inner if isinstance(inner, int) else None


def attributes_of(windows: Window, group: int) -> dict[str, Any]:
    """Return the attributes of a Conv with these windows, without default values."""
    settings = {"strides": (windows.strides, 1), "dilations": (windows.dilations, 1), "pads": (windows.pads, 0)}
    attributes = {name: values.tolist() for name, (values, default) in settings.items() if any(values != default)}
    return {**attributes, **({"group": group} if group != 1 else {})}
