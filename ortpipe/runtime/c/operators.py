"""Operators that move entries, reduce, multiply matrices, normalize or draw at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.runtime.c import elementwise, layers
from ortpipe.runtime.c.elementwise import cast
from ortpipe.runtime.c.layers import Result, integers, mean, permuted, square, total
from ortpipe.runtime.c.values import NotCompiled, Value, ValueTable


def _axis(node: Any, rank: int, default: int) -> int:
    return int(node.get("axis", default)) % max(rank, 1)


def reshape(op: ValueTable, node: Any, x: Value, sizes: Value) -> Value:
    """x in another shape; 0 keeps a size, −1 is inferred."""
    shape = integers(sizes, "a shape")
    if not node.get("allowzero", 0):
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    product = math.prod(n for n in shape if n != -1)
    return op.reshape(x, [x.size // max(product, 1) if n == -1 else n for n in shape])


def flatten(op: ValueTable, node: Any, x: Value) -> Value:
    """x as a matrix."""
    axis = node.get("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    return op.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def squeeze(op: ValueTable, node: Any, x: Value, axes: Value | None = None) -> Value:
    """x without axes of size 1."""
    drop = None if axes is None else {axis % len(x.shape) for axis in integers(axes, "axes")}
    return op.reshape(x, [n for i, n in enumerate(x.shape) if (n != 1 if drop is None else i not in drop)])


def unsqueeze(op: ValueTable, node: Any, x: Value, axes: Value) -> Value:
    """x with new axes of size 1."""
    listed = integers(axes, "axes")
    rank = len(x.shape) + len(listed)
    new, sizes = {axis % rank for axis in listed}, iter(x.shape)
    return op.reshape(x, [1 if i in new else next(sizes) for i in range(rank)])


def transpose(op: ValueTable, node: Any, x: Value) -> Value:
    """x with its axes in another order."""
    order = tuple(node.get("perm") or reversed(range(len(x.shape))))
    return permuted(op, x, order)


def expand(op: ValueTable, node: Any, x: Value, sizes: Value) -> Value:
    """x and a shape, broadcast against each other."""
    shape = np.broadcast_shapes(x.shape, tuple(integers(sizes, "a shape")))
    return x if shape == x.shape else op.make("view", shape, x.dtype, x, info=("expand",))


def _cut(op: ValueTable, x: Value, parts: Mapping[int, slice]) -> Value:
    """Return a slice of x."""
    ranges = [range(n)[parts.get(axis, slice(None))] for axis, n in enumerate(x.shape)]
    if all(part == range(n) for part, n in zip(ranges, x.shape, strict=True)):
        return x
    info = ("slice", tuple(part.start for part in ranges), tuple(part.step for part in ranges))
    return op.make("view", map(len, ranges), x.dtype, x, info=info)


def slice_(
    op: ValueTable,
    node: Any,
    x: Value,
    starts: Value,
    ends: Value,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Value:
    """A slice of x."""
    first, last = integers(starts, "places"), integers(ends, "places")
    along = list(range(len(first))) if axes is None else integers(axes, "places")
    by = [1] * len(first) if steps is None else integers(steps, "places")
    cut = dict[int, slice]()
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        size = x.shape[axis % len(x.shape)]  # as in Python, except that a start in front of the first entry is that
        cut[axis % len(x.shape)] = slice(max(start, -size), None if step < 0 and end < -size else end, step)
    return _cut(op, x, cut)


def split(op: ValueTable, node: Any, x: Value, sizes: Value | None = None) -> Result:
    """x split along an axis."""
    axis, first = _axis(node, len(x.shape), 0), 0
    if sizes is not None:
        parts = integers(sizes, "sizes")
    else:
        count = node.get("num_outputs", node.outputs)
        each = -(-x.shape[axis] // count)
        parts = [min(each, max(0, x.shape[axis] - each * i)) for i in range(count)]
    results = list[Value]()
    for size in parts:
        results.append(_cut(op, x, {axis: slice(first, first + size)}))
        first += size
    return tuple(results)


def concat(op: ValueTable, node: Any, *inputs: Value) -> Value:
    """The inputs one after the other along an axis."""
    parts = [x for x in inputs if x.size] or list(inputs[:1])
    axis = _axis(node, len(parts[0].shape), 0)
    shape = list(parts[0].shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    return parts[0] if len(parts) == 1 else op.make("join", shape, parts[0].dtype, *parts, info=axis)


def pad(
    op: ValueTable, node: Any, x: Value, pads: Value, value: Value | None = None, axes: Value | None = None
) -> Value:
    """x with more entries of one value at its ends, or fewer."""
    if node.get("mode", "constant") != "constant":
        raise NotCompiled(f"mode {node.get('mode')}")
    ends, rank = integers(pads, "pads"), len(x.shape)
    along = list(range(rank)) if axes is None else integers(axes, "axes")
    widths = [(0, 0)] * rank
    for place, axis in enumerate(along):
        widths[axis % rank] = (ends[place], ends[place + len(along)])
    x = _cut(op, x, {i: slice(max(0, -a), x.shape[i] - max(0, -b)) for i, (a, b) in enumerate(widths)})
    widths = [(max(0, a), max(0, b)) for a, b in widths]
    shape = [n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)]
    filling = op.constant(0, x.dtype) if value is None else op.reshape(value, ())
    return x if list(x.shape) == shape else op.make("pad", shape, x.dtype, x, filling, info=tuple(a for a, _ in widths))


def gather(op: ValueTable, node: Any, x: Value, places: Value) -> Value:
    """Entries of x along an axis, by index."""
    axis = _axis(node, len(x.shape), 0)
    shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
    return op.make("gather", shape, x.dtype, x, places, info=axis)


def gather_elements(op: ValueTable, node: Any, x: Value, places: Value) -> Value:
    """For each index along an axis, the entry of x with that index and otherwise the same position."""
    return op.make("gather_elements", places.shape, x.dtype, x, places, info=_axis(node, len(x.shape), 0))


def scatter_elements(op: ValueTable, node: Any, x: Value, places: Value, updates: Value) -> Value:
    """x with entries along an axis replaced or added to."""
    info = (_reduction(node), _axis(node, len(x.shape), 0))
    return op.make("scatter", x.shape, x.dtype, x, places, updates, info=info)


def scatter_nd(op: ValueTable, node: Any, x: Value, places: Value, updates: Value) -> Value:
    """x with entries or slices replaced or added to."""
    return op.make("scatter", x.shape, x.dtype, x, places, updates, info=(_reduction(node), None))


def _reduction(node: Any) -> str:
    signs = {"none": "=", "add": "+=", "mul": "*="}
    if (name := node.get("reduction", "none")) not in signs:
        raise NotCompiled(f"reduction {name}")
    return signs[name]


def one_hot(op: ValueTable, node: Any, places: Value, depth: Value, values: Value) -> Value:
    """values[1] at each index along a new axis, values[0] elsewhere."""
    [count] = integers(depth, "a depth")
    rank = len(places.shape) + 1
    axis = node.get("axis", -1) % rank
    line = op.constant(np.arange(count).reshape([count if i == axis else 1 for i in range(rank)]), np.int64)
    places = op.reshape(cast(op, places, np.int64), (*places.shape[:axis], 1, *places.shape[axis:]))
    off, on = (op.reshape(_cut(op, values, {0: slice(i, i + 1)}), ()) for i in range(2))
    return op.map(
        f"({{0}} == {{1}} || {{0}} + {count} == {{1}} ? {{2}} : {{3}})", places, line, on, off, dtype=on.dtype
    )


def trilu(op: ValueTable, node: Any, x: Value, k: Value | None = None) -> Value:
    """The upper or lower triangle."""
    by, (rows, columns) = 0 if k is None else integers(k, "a diagonal")[0], x.shape[-2:]
    ones = np.ones((rows, columns), bool)
    stays = op.constant(np.triu(ones, by) if node.get("upper", 1) else np.tril(ones, by))
    return op.map("({0} ? {1} : 0)", stays, x, dtype=x.dtype)


# reductions


def _squeezed(op: ValueTable, node: Any, y: Value, axes: Sequence[int]) -> Value:
    if node.get("keepdims", 1):
        return y
    return op.reshape(y, [n for axis, n in enumerate(y.shape) if axis not in axes])


def _reduction_of(function: Callable[[ValueTable, Value, tuple[int, ...]], Value]) -> Callable[..., Value]:
    """Return the operator for a function of a value and axes, which stay with size 1."""

    def run(op: ValueTable, node: Any, x: Value, listed: Value | None = None) -> Value:
        along = node.get("axes") if listed is None else integers(listed, "axes")
        axes = tuple(axis % max(len(x.shape), 1) for axis in along or ())
        if not axes and not node.get("noop_with_empty_axes", 0):
            axes = tuple(range(len(x.shape)))
        return _squeezed(op, node, function(op, x, axes), axes)

    return run


def _magnitude(op: ValueTable, x: Value) -> Value:
    return elementwise.OPERATORS["Abs"](op, None, x)


def _log_sum_exp(op: ValueTable, x: Value, axes: tuple[int, ...]) -> Value:
    top = op.reduce("max", x, axes)
    top = op.map("({0} - {0} == 0 ? {0} : 0)", top)  # 0 in place of infinities
    return op.map("(log$({0}) + {1})", total(op, op.map("exp$({0} - {1})", x, top), axes), top)


def softmax_parts(op: ValueTable, x: Value, axis: int) -> tuple[Value, Value, Value]:
    """Return x − max x, its exponentials and their sums."""
    apart = op.map("({0} - {1})", x, op.reduce("max", x, [axis]))
    powers = op.map("exp$({0})", apart)
    return apart, powers, total(op, powers, [axis])


def softmax(op: ValueTable, node: Any, x: Value) -> Value:
    """eˣ / Σ eˣ along an axis."""
    _, powers, sums = softmax_parts(op, x, _axis(node, len(x.shape), -1))
    return op.map("({0} * {1})", powers, op.map("(1 / {0})", sums))


def log_softmax(op: ValueTable, node: Any, x: Value) -> Value:
    """x − ln Σ eˣ along an axis."""
    apart, _, sums = softmax_parts(op, x, _axis(node, len(x.shape), -1))
    return op.map("({0} - {1})", apart, op.map("log$({0})", sums))


OPERATORS: Mapping[str, Callable[..., Result]] = {
    **elementwise.OPERATORS,
    **layers.OPERATORS,
    "Concat": concat,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "LogSoftmax": log_softmax,
    "OneHot": one_hot,
    "Pad": pad,
    "ReduceL1": _reduction_of(lambda op, x, axes: total(op, _magnitude(op, x), axes)),
    "ReduceL2": _reduction_of(lambda op, x, axes: op.map("sqrt$({0})", total(op, square(op, x), axes))),
    "ReduceLogSum": _reduction_of(lambda op, x, axes: op.map("log$({0})", total(op, x, axes))),
    "ReduceLogSumExp": _reduction_of(_log_sum_exp),
    "ReduceMax": _reduction_of(lambda op, x, axes: op.reduce("max", x, axes)),
    "ReduceMean": _reduction_of(mean),
    "ReduceMin": _reduction_of(lambda op, x, axes: op.reduce("min", x, axes)),
    "ReduceProd": _reduction_of(lambda op, x, axes: op.reduce("*", x, axes)),
    "ReduceSum": _reduction_of(total),
    "ReduceSumSquare": _reduction_of(lambda op, x, axes: total(op, square(op, x), axes)),
    "Reshape": reshape,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slice_,
    "Softmax": softmax,
    "Split": split,
    "Squeeze": squeeze,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
