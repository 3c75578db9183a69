"""Reductions along axes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, axes_of


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the operator for a function of an array, `axis` and `keepdims`; the type is kept."""

    def run(node: Node, x: Array, listed: Array | None = None) -> Array:
        axes = axes_of(listed, x.ndim)
        if not axes:
            if node.get("noop_with_empty_axes", 0):
                return jnp.asarray(function(x, axis=(), keepdims=True)).astype(x.dtype)
            axes = tuple(range(x.ndim))
        return jnp.asarray(function(x, axis=axes, keepdims=bool(node.get("keepdims", 1)))).astype(x.dtype)

    return run


def _sum(x: Array, **axes: Any) -> Array:
    return jnp.sum(x, dtype=x.dtype, **axes)  # without dtype, NumPy widens integers


def _mean(x: Array, **axes: Any) -> Array:
    total = _sum(x, **axes)
    count = np.prod([x.shape[axis] for axis in axes["axis"]], dtype=np.int64)
    if not np.issubdtype(x.dtype, np.integer):
        return total / np.asarray(count).astype(x.dtype)
    sign = 1 - 2 * (total < 0).astype(np.int64)
    return (abs(total) // count * sign).astype(x.dtype)  # truncated


def _extreme(function: Callable[..., Array], *, least: bool) -> Callable[..., Array]:
    def run(x: Array, **axes: Any) -> Array:
        if x.dtype == bool:
            return (jnp.any if least else jnp.all)(x, **axes)
        if np.issubdtype(x.dtype, np.integer):
            bounds = np.iinfo(x.dtype)
            return function(x, initial=bounds.min if least else bounds.max, **axes)  # for empty inputs
        return function(x, initial=-np.inf if least else np.inf, **axes)

    return run


def _argument(function: Callable[..., Array]) -> Callable[..., Array]:
    def run(node: Node, x: Array) -> Array:
        axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
        if not node.get("select_last_index", 0):
            return function(x, axis=axis, keepdims=keep).astype(np.int64)
        return x.shape[axis] - 1 - function(jnp.flip(x, axis), axis=axis, keepdims=keep).astype(np.int64)

    return run


OPERATORS: Mapping[str, Callable[..., Array]] = {
    "ArgMax": _argument(jnp.argmax),
    "ArgMin": _argument(jnp.argmin),
    "ReduceL1": _reduction(lambda x, **axes: _sum(jnp.abs(x), **axes)),
    "ReduceL2": _reduction(lambda x, **axes: jnp.sqrt(_sum(x * x, **axes))),
    "ReduceLogSum": _reduction(lambda x, **axes: jnp.log(_sum(x, **axes))),
    "ReduceLogSumExp": _reduction(lambda x, **axes: jax.nn.logsumexp(x, **axes) if axes["axis"] else x),
    "ReduceMax": _reduction(_extreme(jnp.max, least=True)),
    "ReduceMean": _reduction(_mean),
    "ReduceMin": _reduction(_extreme(jnp.min, least=False)),
    "ReduceProd": _reduction(lambda x, **axes: jnp.prod(x, dtype=x.dtype, **axes)),
    "ReduceSum": _reduction(_sum),
    "ReduceSumSquare": _reduction(lambda x, **axes: _sum(x * x, **axes)),
}
