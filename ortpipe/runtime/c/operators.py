"""Operators that index, join, reduce, multiply matrices, normalize or draw at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.runtime.c import elementwise
from ortpipe.runtime.c.elementwise import cast, number
from ortpipe.runtime.c.strides import Strides, contiguous, fitted
from ortpipe.runtime.c.values import NotCompiled, Value, ValueTable, behind_views, broadcast_shapes

Result = Value | tuple[Value, ...]


def integers(value: Value, what: str) -> list[int]:
    """Return sizes, axes or places that must be constant."""
    if value.kind != "constant":
        raise NotCompiled(f"{what} computed while it runs")
    return [int(n) for n in value.info.ravel()]


def _axis(node: Any, x: Value) -> int:
    return int(node.get("axis")) % max(len(x.shape), 1)


# entries by position


def picked(op: ValueTable, x: Value, places: np.ndarray) -> Value:
    """Return the entries of x at constant positions."""
    if (strides := fitted(places)) is not None:
        return op.view(x, places.shape, strides)
    flat = op.reshape(x, (x.size,))
    return _gathered(op, flat, op.constant(places), Strides(0, (0,) * places.ndim), 1, x.size)


def _gathered(op: ValueTable, x: Value, places: Value, first: Strides, step: int, size: int) -> Value:
    """Return the entries of x at `first` + step · place, for places below a size."""
    return op.make("gather", places.shape, x.dtype, x, places, info=(first, step, size))


def gather(op: ValueTable, node: Any, x: Value, places: Value) -> Value:
    """Entries of x along an axis, by index."""
    axis, steps = _axis(node, x), contiguous(x.shape).steps
    rest, rank = x.shape[axis + 1 :], len(places.shape)
    shape = (*x.shape[:axis], *places.shape, *rest)
    wide = op.view(places, shape, Strides(0, (0,) * axis + contiguous(places.shape).steps + (0,) * len(rest)))
    first = Strides(0, steps[:axis] + (0,) * rank + steps[axis + 1 :])
    return _gathered(op, x, wide, first, math.prod(rest), x.shape[axis])


def _without(x: Value, axis: int) -> Strides:
    return Strides(0, tuple(0 if i == axis else step for i, step in enumerate(contiguous(x.shape).steps)))


def gather_elements(op: ValueTable, node: Any, x: Value, places: Value) -> Value:
    """For each index along an axis, the entry of x with that index and otherwise the same position."""
    axis = _axis(node, x)
    return _gathered(op, x, places, _without(x, axis), math.prod(x.shape[axis + 1 :]), x.shape[axis])


def _scattered(op: ValueTable, node: Any, x: Value, updates: Value, places: list[Value], info: Any) -> Value:
    signs = {"none": "=", "add": "+=", "mul": "*="}
    if (name := node.get("reduction")) not in signs:
        raise NotCompiled(f"reduction {name}")
    return op.make("scatter", x.shape, x.dtype, x, updates, *places, info=(signs[name], *info))


def scatter_elements(op: ValueTable, node: Any, x: Value, places: Value, updates: Value) -> Value:
    """x with entries along an axis replaced or added to."""
    axis = _axis(node, x)
    parts = ((math.prod(x.shape[axis + 1 :]), x.shape[axis]),)
    return _scattered(op, node, x, updates, [places], (_without(x, axis), parts))


def scatter_nd(op: ValueTable, node: Any, x: Value, places: Value, updates: Value) -> Value:
    """x with entries or slices replaced or added to."""
    depth, rank, steps = places.shape[-1], len(places.shape) - 1, contiguous(places.shape).steps[:-1]
    inner = len(updates.shape) - rank
    parts = [op.view(places, updates.shape, Strides(number, steps + (0,) * inner)) for number in range(depth)]
    first = Strides(0, (0,) * rank + contiguous(x.shape).steps[depth:])
    by = tuple((math.prod(x.shape[i + 1 :]), x.shape[i]) for i in range(depth))
    return _scattered(op, node, x, updates, parts, (first, by))


def concat(op: ValueTable, node: Any, *inputs: Value) -> Value:
    """The inputs one after the other along an axis."""
    return joined(op, _axis(node, inputs[0]), [x for x in inputs if x.size] or list(inputs[:1]))


def joined(op: ValueTable, axis: int, parts: Sequence[Value]) -> Value:
    """Return values one after the other along an axis."""
    shape = list(parts[0].shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    return parts[0] if len(parts) == 1 else op.make("join", shape, parts[0].dtype, *parts, info=axis)


def pad(
    op: ValueTable, node: Any, x: Value, pads: Value, value: Value | None = None, axes: Value | None = None
) -> Value:
    """x with more entries of one value at its ends, or fewer."""
    if node.get("mode") != "constant":
        raise NotCompiled(f"mode {node.get('mode')}")
    ends = integers(pads, "pads")
    along = range(len(x.shape)) if axes is None else integers(axes, "axes")
    filling = op.constant(0, x.dtype) if value is None else op.reshape(value, ())
    for axis, before, after in zip(along, ends, ends[len(ends) // 2 :], strict=False):
        size, wide = x.shape[axis], list(x.shape)
        wide[axis] = size - max(0, -before) - max(0, -after)
        first = max(0, -before) * contiguous(x.shape).steps[axis]
        parts = [op.view(x, wide, Strides(first, contiguous(x.shape).steps))]
        for count, place in ((before, 0), (after, 2)):
            wide[axis] = count
            parts[place:place] = [op.expand(filling, wide)] if count > 0 else []
        x = joined(op, axis % len(x.shape), parts)
    return x


def one_hot(op: ValueTable, node: Any, places: Value, depth: Value, values: Value) -> Value:
    """values[1] at each index along a new axis, values[0] elsewhere."""
    [count], rank = integers(depth, "a depth"), len(places.shape) + 1
    axis = node.get("axis") % rank
    line = op.constant(np.arange(count).reshape([count if i == axis else 1 for i in range(rank)]), np.int64)
    places = op.reshape(cast(op, places, np.int64), (*places.shape[:axis], 1, *places.shape[axis:]))
    off, on = (op.view(values, (), Strides(i, ())) for i in range(2))
    return op.map(f"{{0}} == {{1}} || {{0}} + {count} == {{1}} ? {{2}} : {{3}}", places, line, on, off, dtype=on.dtype)


def trilu(op: ValueTable, node: Any, x: Value, k: Value | None = None) -> Value:
    """The upper or lower triangle."""
    by, ones = 0 if k is None else integers(k, "a diagonal")[0], np.ones(x.shape[-2:], bool)
    stays = op.constant(np.triu(ones, by) if node.get("upper") else np.tril(ones, by))
    return op.map("{0} ? {1} : 0", stays, x, dtype=x.dtype)


# reductions


def total(op: ValueTable, x: Value, axes: Sequence[int]) -> Value:
    """Return Σ x over axes, which stay with size 1."""
    return op.reduce("+", x, axes)


def mean(op: ValueTable, x: Value, axes: Sequence[int]) -> Value:
    """Return the mean over axes; of integers it is truncated."""
    count = math.prod(x.shape[axis] for axis in axes)
    return op.map(f"{{0}} / {number(count, x.dtype)}", total(op, x, axes))


def square(op: ValueTable, x: Value) -> Value:
    """Return x²."""
    return op.map("{0} * {0}", x)


def _reduction(function: Callable[[ValueTable, Value, tuple[int, ...]], Value]) -> Callable[..., Value]:
    """Return the operator for a function of a value and axes, which stay with size 1."""

    def run(op: ValueTable, node: Any, x: Value, listed: Value | None = None) -> Value:
        along = node.get("axes") if listed is None else integers(listed, "axes")
        axes = tuple(axis % max(len(x.shape), 1) for axis in along or ())
        if not axes and not node.get("noop_with_empty_axes"):
            axes = tuple(range(len(x.shape)))
        y = function(op, x, axes)
        return y if node.get("keepdims") else op.reshape(y, [n for i, n in enumerate(y.shape) if i not in axes])

    return run


def _log_sum_exp(op: ValueTable, x: Value, axes: tuple[int, ...]) -> Value:
    top = op.reduce("max", x, axes)
    top = op.map("{0} - {0} == 0 ? {0} : 0", top)  # 0 in place of infinities
    return op.map("log$({0}) + {1}", total(op, op.map("exp$({0} - {1})", x, top), axes), top)


def _softmax_parts(op: ValueTable, node: Any, x: Value) -> tuple[Value, Value, Value]:
    """Return x − max x, its exponentials and their sums along an axis."""
    axis = _axis(node, x)
    apart = op.map("{0} - {1}", x, op.reduce("max", x, [axis]))
    powers = op.map("exp$({0})", apart)
    return apart, powers, total(op, powers, [axis])


def softmax(op: ValueTable, node: Any, x: Value) -> Value:
    """eˣ / Σ eˣ along an axis."""
    _, powers, sums = _softmax_parts(op, node, x)
    return op.map("{0} * {1}", powers, op.map("1 / {0}", sums))


def log_softmax(op: ValueTable, node: Any, x: Value) -> Value:
    """x − ln Σ eˣ along an axis."""
    apart, _, sums = _softmax_parts(op, node, x)
    return op.map("{0} - {1}", apart, op.map("log$({0})", sums))


# products


def matmul(op: ValueTable, node: Any, a: Value, b: Value) -> Value:
    """The matrix product over the last axes."""
    if a.dtype.kind != "f":
        raise NotCompiled(f"products of {a.dtype.name}")
    rows, columns = len(a.shape) == 1, len(b.shape) == 1
    a = op.reshape(a, (1, *a.shape)) if rows else a
    b = op.reshape(b, (*b.shape, 1)) if columns else b
    y = _product(op, a, b)
    shape = [*y.shape[:-2], *([] if rows else y.shape[-2:-1]), *([] if columns else y.shape[-1:])]
    return op.reshape(y, shape)


def _product(
    op: ValueTable, a: Value, b: Value, c: Value | None = None, numbers: tuple[float, float] = (1, 1)
) -> Value:
    """Return α·A·B + β·C; one with a row of ones is a sum, one over one entry a map."""
    if a.shape[-1] != b.shape[-2]:
        raise NotCompiled(f"a product of matrices with {a.shape[-1]} columns and {b.shape[-2]} rows")
    if _is_ones(a) and c is None and numbers[0] == 1 and len(a.shape) == 2 and a.shape[0] == 1:
        return total(op, b, [len(b.shape) - 2])
    if a.shape[-1] == 1 and c is None and numbers[0] == 1:
        return op.map("{0} * {1}", a, b)
    if len(b.shape) == 2 and len(a.shape) > 2:
        y = _product(op, op.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1])), b)
        return op.reshape(y, (*a.shape[:-1], b.shape[-1]))
    if a.shape[-1] == 0:
        raise NotCompiled("a product over no entries")
    shape = (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    return op.make("product", shape, a.dtype, a, b, *([] if c is None else [c]), info=numbers)


def _is_ones(x: Value) -> bool:
    x = behind_views(x)
    return x.kind == "constant" and bool((x.info == 1).all())


def gemm(op: ValueTable, node: Any, a: Value, b: Value, c: Value | None = None) -> Value:
    """α·A·B + β·C."""
    a = op.permute(a, (1, 0)) if node.get("transA") else a
    b = op.permute(b, (1, 0)) if node.get("transB") else b
    return _product(op, a, b, None if node.get("beta") == 0 else c, (node.get("alpha"), node.get("beta")))


def einsum(op: ValueTable, node: Any, *inputs: Value) -> Value:
    """A sum of products, by a label for each axis; operands are multiplied from the left."""
    left, arrow, result = node.get("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or any(len({*term}) < len(term) for term in terms):
        raise NotCompiled(f"the equation {node.get('equation')}")
    sizes = {(label, n) for x, term in zip(inputs, terms, strict=True) for label, n in zip(term, x.shape, strict=True)}
    if len({label for label, _ in sizes}) < len(sizes):
        raise NotCompiled(f"the equation {node.get('equation')} with two sizes of one label")
    x, labels = inputs[0], terms[0]
    for place, (y, more) in enumerate(zip(inputs[1:], terms[1:], strict=True), 2):
        x, labels = _contracted(op, (x, labels), (y, more), {*result, *"".join(terms[place:])})
    x, labels = _summed(op, x, labels, {*result})
    return op.permute(x, [labels.index(label) for label in result])


def _summed(op: ValueTable, x: Value, labels: str, needed: set[str]) -> tuple[Value, str]:
    """Sum over the axes of labels that are not needed."""
    y = total(op, x, [axis for axis, label in enumerate(labels) if label not in needed])
    stays = "".join(label for label in labels if label in needed)
    return op.reshape(y, [n for n, label in zip(x.shape, labels, strict=True) if label in needed]), stays


def _contracted(op: ValueTable, a: tuple[Value, str], b: tuple[Value, str], needed: set[str]) -> tuple[Value, str]:
    """Return the product of two operands with labels, summed over shared axes that are not needed."""
    (x, first), (y, second) = _summed(op, *a, needed | {*b[1]}), _summed(op, *b, needed | {*a[1]})
    batch = [label for label in first if label in second and label in needed]
    inner = [label for label in first if label in second and label not in needed]
    rows, columns = ([label for label in labels if label not in (*batch, *inner)] for labels in (first, second))
    sizes = dict(zip(first + second, x.shape + y.shape, strict=True))

    def shaped(value: Value, labels: str, *groups: list[str]) -> Value:
        order = [labels.index(label) for label in (*batch, *groups[0], *groups[1])]
        shape = [*(sizes[label] for label in batch), *(math.prod(sizes[n] for n in group) for group in groups)]
        return op.reshape(op.permute(value, order), shape)

    product = _product(op, shaped(x, first, rows, inner), shaped(y, second, inner, columns))
    labels = [*batch, *rows, *columns]
    return op.reshape(product, [sizes[label] for label in labels]), "".join(labels)


# normalization


def _moments(op: ValueTable, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """Return μ, x − μ and σ² over axes."""
    middle = mean(op, x, axes)
    apart = op.map("{0} - {1}", x, middle)
    return middle, apart, mean(op, square(op, apart), axes)


def _inverse_root(op: ValueTable, node: Any, variance: Value) -> Value:
    return op.map(f"1 / sqrt$({{0}} + {number(node.get('epsilon'), variance.dtype)})", variance)


def layer_normalization(op: ValueTable, node: Any, x: Value, scale: Value, bias: Value | None = None) -> Result:
    """s·(x − μ) / √(σ² + ε) + b over the last axes."""
    middle, apart, variance = _moments(op, x, range(_axis(node, x), len(x.shape)))
    factor = _inverse_root(op, node, variance)
    y = op.map("{0} * {1} * {2}", apart, factor, scale)
    return (y if bias is None else op.map("{0} + {1}", y, bias), middle, factor)[: node.outputs]


def batch_normalization(
    op: ValueTable, node: Any, x: Value, scale: Value, bias: Value, middle: Value, variance: Value
) -> Result:
    """s·(x − μ) / √(σ² + ε) + b by channel, with the running statistics or, in training, the batch's own."""
    rows = (1, scale.size, *[1] * (len(x.shape) - 2)) if len(x.shape) > 1 else (scale.size,)
    old, moved = (middle, variance), list[Value]()
    middle, variance = op.reshape(middle, rows), op.reshape(variance, rows)
    if node.get("training_mode"):
        middle, _, variance = _moments(op, x, (0, *range(2, len(x.shape))))
        share, rest = (number(part, x.dtype) for part in (node.get("momentum"), 1 - np.float32(node.get("momentum"))))
        for before, new in zip(old, (middle, variance), strict=True):
            moved.append(op.map(f"{{0}} * {share} + {{1}} * {rest}", before, op.reshape(new, before.shape)))
    factor = op.map("{0} * {1}", _inverse_root(op, node, variance), op.reshape(scale, rows))
    y = op.map("({0} - {1}) * {2} + {3}", x, middle, factor, op.reshape(bias, rows))
    return (y, *moved)[: node.outputs]


# random numbers, as XLA's engine draws them


def _draw(op: ValueTable, node: Any, shape: Sequence[int]) -> Value:
    """Return uniform numbers in [0, 1) in float32, by the step and the number of the node."""
    return op.make("draw", shape, np.float32, info=node.number, level=node.level)


def dropout(op: ValueTable, node: Any, x: Value, ratio: Value | None = None, training: Value | None = None) -> Result:
    """x / (1 − ratio) where a random number is at least the ratio, else 0; and the mask."""
    if training is None or not integers(training, "a mode")[0]:
        return (x, op.expand(op.constant(True), x.shape))[: node.outputs]
    share = op.constant(0.5, x.dtype) if ratio is None else ratio
    stays = op.map("{0} >= {1}", _draw(op, node, x.shape), cast(op, share, np.float32), dtype=bool)
    left = cast(op, op.map("1 - {0}", share), x.dtype)
    return (op.map("{0} ? {1} / {2} : 0", stays, x, left, dtype=x.dtype), stays)[: node.outputs]


def random_uniform_like(op: ValueTable, node: Any, x: Value) -> Value:
    """Uniform numbers in the shape of x."""
    if x.dtype != np.float32 or node.get("dtype") not in (None, 1):
        raise NotCompiled("random numbers in float64")
    low, high = np.float32(node.get("low")), np.float32(node.get("high"))
    return op.map(f"{{0}} * {number(high - low, x.dtype)} + {number(low, x.dtype)}", _draw(op, node, x.shape))


def bernoulli(op: ValueTable, node: Any, x: Value) -> Value:
    """1 with probability x, else 0."""
    return cast(op, op.map("{0} < {1}", _draw(op, node, x.shape), x, dtype=bool), x.dtype)


OPERATORS: Mapping[str, Callable[..., Result]] = {
    **elementwise.OPERATORS,
    "BatchNormalization": batch_normalization,
    "Bernoulli": bernoulli,
    "Concat": concat,
    "Dropout": dropout,
    "Einsum": einsum,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Gemm": gemm,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "OneHot": one_hot,
    "Pad": pad,
    "RandomUniformLike": random_uniform_like,
    "ReduceL1": _reduction(lambda op, x, axes: total(op, elementwise.OPERATORS["Abs"](op, None, x), axes)),
    "ReduceL2": _reduction(lambda op, x, axes: op.map("sqrt$({0})", total(op, square(op, x), axes))),
    "ReduceLogSum": _reduction(lambda op, x, axes: op.map("log$({0})", total(op, x, axes))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(lambda op, x, axes: op.reduce("max", x, axes)),
    "ReduceMean": _reduction(mean),
    "ReduceMin": _reduction(lambda op, x, axes: op.reduce("min", x, axes)),
    "ReduceProd": _reduction(lambda op, x, axes: op.reduce("*", x, axes)),
    "ReduceSum": _reduction(total),
    "ReduceSumSquare": _reduction(lambda op, x, axes: total(op, square(op, x), axes)),
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Softmax": softmax,
    "Trilu": trilu,
}
