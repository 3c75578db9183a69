"""Pooling and its inverse."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Result, Unsupported, integers
from ortpipe.runtime.xla.operators.windows import entries_by_place, pads_of

lax = jax.lax


def _layout(node: Node, x: Array) -> tuple[list[int], list[int], list[int], list[tuple[int, int]], list[int]]:
    """Return kernel, strides, dilations, pads, and the excess of ceil_mode beyond the end, by axis."""
    kernel = list(node.get("kernel_shape"))
    ones = [1] * len(kernel)
    strides, dilations = list(node.get("strides") or ones), list(node.get("dilations") or ones)
    pads = pads_of(node, x.shape[2:], kernel, strides, dilations)
    beyond = [0] * len(kernel)
    if node.get("ceil_mode", 0) and node.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        for i, (n, k, s, d, (a, b)) in enumerate(zip(x.shape[2:], kernel, strides, dilations, pads, strict=True)):
            reach = (k - 1) * d + 1
            count = -(-(n + a + b - reach) // s) + 1
            if (count - 1) * s >= n + a:  # a window must start inside the input or in the padding before it
                count -= 1
            beyond[i] = max(0, (count - 1) * s + reach - (n + a + b))
    return kernel, strides, dilations, pads, beyond


def _windows(x: Array, fill: Any, layout: Any) -> list[Array]:
    """Return, for each kernel element in order, the values that all windows have there [N, C, …]."""
    kernel, strides, dilations, pads, beyond = layout
    widths = [(0, 0), (0, 0), *((a, b + c) for (a, b), c in zip(pads, beyond, strict=True))]
    return entries_by_place(jnp.pad(x, widths, constant_values=fill), kernel, strides, dilations)


def _constant_windows(x: np.ndarray, fill: int, layout: Any) -> list[np.ndarray]:
    """Return the windows of an array that is known during tracing."""
    with jax.ensure_compile_time_eval():
        return [np.asarray(entries) for entries in _windows(x, fill, layout)]


def max_pool(node: Node, x: Array) -> Result:
    """The largest entry of each window, and its flat index in x; ties go to the first."""
    layout, sizes = _layout(node, x), x.shape[2:]
    least = np.iinfo(x.dtype).min if np.issubdtype(x.dtype, np.integer) else -np.inf
    order: Any = "F" if node.get("storage_order", 0) else "C"
    numbers = _constant_windows(np.arange(math.prod(sizes)).reshape(1, 1, *sizes, order=order), -1, layout)
    at: Array = numbers[0]
    best, *others = _windows(x, least, layout)
    for entries, number in zip(others, numbers[1:], strict=True):
        better = (entries > best) | jnp.isnan(entries)
        if node.outputs > 1:
            at = jnp.where(better | ((at < 0) & (number >= 0)), number, at)
        best = jnp.where(better, entries, best)
    if node.outputs < 2:
        return best
    each = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(sizes)) * math.prod(sizes)
    return best, jnp.asarray(at) + each


def average_pool(node: Node, x: Array) -> Array:
    """The mean of each window over the entries inside x, or with `count_include_pad` inside the padded x."""
    layout = _layout(node, x)
    _, _, _, pads, beyond = layout
    total = sum(_windows(x, 0, layout))
    ones = np.ones((1, 1, *x.shape[2:]), np.int64)
    if node.get("count_include_pad", 0):
        ones = np.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1)
        layout = (*layout[:3], [(0, 0)] * len(pads), beyond)
    return total / np.sum(_constant_windows(ones, 0, layout), axis=0).astype(x.dtype)


def lp_pool(node: Node, x: Array) -> Array:
    """The p-norm of each window."""
    p = node.get("p", 2)
    entries = [jnp.abs(part) for part in _windows(x, 0, _layout(node, x))]
    if p == 1:
        return sum(entries)
    total = sum(part * part if p == 2 else part**p for part in entries)
    return jnp.sqrt(total) if p == 2 else (total ** (1 / p)).astype(x.dtype)


def _global(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda node, x: function(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def global_lp_pool(node: Node, x: Array) -> Array:
    """The p-norm of each channel."""
    p = node.get("p", 2)
    total = jnp.sum(jnp.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
    return (total ** (1 / p)).astype(x.dtype)


def max_unpool(node: Node, x: Array, places: Array, sizes: Array | None = None) -> Array:
    """Put each entry at its index, as MaxPool of the same windows returns it; 0 elsewhere."""
    kernel = node.get("kernel_shape")
    strides = node.get("strides") or [1] * len(kernel)
    pads = node.get("pads") or [0] * (2 * len(kernel))
    natural = [
        (n - 1) * s - a - b + k
        for n, s, k, a, b in zip(x.shape[2:], strides, kernel, pads, pads[len(kernel) :], strict=False)
    ]
    shape = [*x.shape[:2], *natural] if sizes is None else integers(sizes, "a shape")
    if list(kernel) == list(strides) and not any(pads) and list(shape[2:]) == natural:
        return _unpool_apart(x, places, kernel, shape)
    if sizes is not None and list(shape[2:]) != natural:  # indices refer to the natural size
        raise Unsupported("an output shape that is not the windows' own")
    flat = jnp.zeros(math.prod(shape), x.dtype)
    return flat.at[places.reshape(-1)].set(x.reshape(-1), mode="drop").reshape(shape)


def _unpool_apart(x: Array, places: Array, kernel: Sequence[int], shape: Sequence[int]) -> Array:
    """Unpool windows that do not overlap without a scatter: compare each position with its window's index."""
    for axis, k in enumerate(kernel, start=2):
        x, places = jnp.repeat(x, k, axis), jnp.repeat(places, k, axis)
    return jnp.where(places == np.arange(math.prod(shape)).reshape(shape), x, jnp.zeros((), x.dtype))


OPERATORS: Mapping[str, Callable[..., Result]] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": _global(jnp.mean),
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": _global(jnp.max),
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
}
