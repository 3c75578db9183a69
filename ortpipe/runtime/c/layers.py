"""Products, normalization and random draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.runtime.c.elementwise import cast, number
from ortpipe.runtime.c.values import NotCompiled, Value, ValueTable

Result = Value | tuple[Value, ...]


def integers(value: Value, what: str) -> list[int]:
    """Return sizes, axes or places that must be constant."""
    if value.kind != "constant":
        raise NotCompiled(f"{what} computed while it runs")
    return [int(n) for n in value.info.ravel()]


def permuted(op: ValueTable, x: Value, order: Sequence[int]) -> Value:
    """Return x with its axes in an order."""
    if tuple(order) == tuple(range(len(x.shape))):
        return x
    return op.make("view", [x.shape[i] for i in order], x.dtype, x, info=("permute", tuple(order)))


def total(op: ValueTable, x: Value, axes: Sequence[int]) -> Value:
    """Return Σ x over axes."""
    return op.reduce("+", x, axes)


def mean(op: ValueTable, x: Value, axes: Sequence[int]) -> Value:
    """Return the mean over axes; of integers it is truncated."""
    count = math.prod(x.shape[axis] for axis in axes)
    return op.map(f"({{0}} / {number(count, x.dtype)})", total(op, x, axes))


def square(op: ValueTable, x: Value) -> Value:
    """Return x²."""
    return op.map("({0} * {0})", x)


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
        return op.map("({0} * {1})", a, b)
    if len(b.shape) == 2 and len(a.shape) > 2:
        y = _product(op, op.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1])), b)
        return op.reshape(y, (*a.shape[:-1], b.shape[-1]))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if a.shape[-1] == 0:
        raise NotCompiled("a product over no entries")
    return op.make("product", shape, a.dtype, a, b, *([] if c is None else [c]), info=numbers)


def _is_ones(x: Value) -> bool:
    while x.kind == "view":
        x = x.args[0]
    return x.kind == "constant" and bool((x.info == 1).all())


def gemm(op: ValueTable, node: Any, a: Value, b: Value, c: Value | None = None) -> Value:
    """α·A·B + β·C."""
    a = permuted(op, a, (1, 0)) if node.get("transA", 0) else a
    b = permuted(op, b, (1, 0)) if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    return _product(op, a, b, None if beta == 0 else c, (alpha, beta))


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
    return permuted(op, x, [labels.index(label) for label in result])


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
        return op.reshape(permuted(op, value, order), shape)

    product = _product(op, shaped(x, first, rows, inner), shaped(y, second, inner, columns))
    labels = [*batch, *rows, *columns]
    return op.reshape(product, [sizes[label] for label in labels]), "".join(labels)


# normalization


def _moments(op: ValueTable, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """Return μ, x − μ and σ² over axes."""
    middle = mean(op, x, axes)
    apart = op.map("({0} - {1})", x, middle)
    return middle, apart, mean(op, square(op, apart), axes)


def _inverse_root(op: ValueTable, node: Any, variance: Value) -> Value:
    return op.map(f"(1 / sqrt$({{0}} + {number(node.get('epsilon', 1e-5), variance.dtype)}))", variance)


def layer_normalization(op: ValueTable, node: Any, x: Value, scale: Value, bias: Value | None = None) -> Result:
    """s·(x − μ) / √(σ² + ε) + b over the last axes."""
    axes = tuple(range(node.get("axis", -1) % len(x.shape), len(x.shape)))
    middle, apart, variance = _moments(op, x, axes)
    factor = _inverse_root(op, node, variance)
    y = op.map("({0} * {1} * {2})", apart, factor, scale)
    return (y if bias is None else op.map("({0} + {1})", y, bias), middle, factor)[: node.outputs]


def batch_normalization(
    op: ValueTable, node: Any, x: Value, scale: Value, bias: Value, middle: Value, variance: Value
) -> Result:
    """s·(x − μ) / √(σ² + ε) + b by channel, with the running statistics or, in training, the batch's own."""
    rows = (1, scale.size, *[1] * (len(x.shape) - 2)) if len(x.shape) > 1 else (scale.size,)
    trains, momentum = node.get("training_mode", 0), node.get("momentum", 0.9)
    moved: tuple[Value, ...] = ()
    if trains:
        first, _, second = _moments(op, x, (0, *range(2, len(x.shape))))
        share, rest = number(momentum, x.dtype), number(1 - np.float32(momentum), x.dtype)
        moved = tuple(
            op.map(f"({{0}} * {share} + {{1}} * {rest})", old, op.reshape(new, old.shape))
            for old, new in ((middle, first), (variance, second))
        )
        middle, variance = first, second
    else:
        middle, variance = op.reshape(middle, rows), op.reshape(variance, rows)
    factor = op.map("({0} * {1})", _inverse_root(op, node, variance), op.reshape(scale, rows))
    y = op.map("(({0} - {1}) * {2} + {3})", x, middle, factor, op.reshape(bias, rows))
    return (y, *moved)[: node.outputs]


# random numbers, as XLA's engine draws them


def _draw(op: ValueTable, node: Any, shape: Sequence[int]) -> Value:
    """Return uniform numbers in [0, 1) in float32, by the step and the number of the node."""
    return op.make("draw", shape, np.float32, info=node.number, level=node.level)


def dropout(op: ValueTable, node: Any, x: Value, ratio: Value | None = None, training: Value | None = None) -> Result:
    """x / (1 − ratio) where a random number is at least the ratio, else 0; and the mask."""
    trains = training is not None and bool(integers(training, "a mode")[0])
    if not trains:
        return (x, op.make("view", x.shape, bool, op.constant(True), info=("expand",)))[: node.outputs]
    share = op.constant(0.5, x.dtype) if ratio is None else ratio
    stays = op.map("({0} >= {1})", _draw(op, node, x.shape), cast(op, share, np.float32), dtype=bool)
    left = cast(op, op.map("(1 - {0})", share), x.dtype)
    return (op.map("({0} ? {1} / {2} : 0)", stays, x, left, dtype=x.dtype), stays)[: node.outputs]


def random_uniform_like(op: ValueTable, node: Any, x: Value) -> Value:
    """Uniform numbers in the shape of x."""
    if x.dtype != np.float32 or node.get("dtype", 1) != 1:
        raise NotCompiled("random numbers in float64")
    low, high = np.float32(node.get("low", 0.0)), np.float32(node.get("high", 1.0))
    return op.map(f"({{0}} * {number(high - low, x.dtype)} + {number(low, x.dtype)})", _draw(op, node, x.shape))


def bernoulli(op: ValueTable, node: Any, x: Value) -> Value:
    """1 with probability x, else 0."""
    drawn = op.map("({0} < {1})", _draw(op, node, x.shape), x, dtype=bool)
    return cast(op, drawn, x.dtype)


OPERATORS: Mapping[str, Callable[..., Result]] = {
    "BatchNormalization": batch_normalization,
    "Bernoulli": bernoulli,
    "Dropout": dropout,
    "Einsum": einsum,
    "Gemm": gemm,
    "LayerNormalization": layer_normalization,
    "MatMul": matmul,
    "RandomUniformLike": random_uniform_like,
}
