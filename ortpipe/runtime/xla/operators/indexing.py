"""Operators that read or write by index.

Reading out of bounds gives nan (for integers, the minimum), because compiled code cannot raise an error as ONNX Runtime
does. Indices are never clipped: the loss becomes non-finite, which training reports.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Result, integers

FILL: Any = "fill"


def gather(node: Node, x: Array, places: Array) -> Array:
    """Entries of x along an axis, by index."""
    return jnp.take(x, _counted(places, x.shape[node.get("axis", 0)]), node.get("axis", 0), mode=FILL)


def gather_elements(node: Node, x: Array, places: Array) -> Array:
    """For each index along an axis, the entry of x with that index and otherwise the same position."""
    axis = node.get("axis", 0) % x.ndim
    return jnp.asarray(x).at[_open(places, x.shape, axis)].get(mode=FILL)


def gather_nd(node: Node, x: Array, places: Array) -> Array:
    """Entries or slices of x, by index vectors."""
    batch, depth = node.get("batch_dims", 0), places.shape[-1]
    sizes = x.shape[batch : batch + depth]
    index = [_counted(places[..., i], size) for i, size in enumerate(sizes)]
    lead = [np.arange(n).reshape(*[1] * i, n, *[1] * (places.ndim - 2 - i)) for i, n in enumerate(x.shape[:batch])]
    return jnp.asarray(x).at[(*lead, *index)].get(mode=FILL)


def scatter_elements(node: Node, x: Array, places: Array, updates: Array) -> Array:
    """x with entries along an axis replaced or added to."""
    return _write(node, x, _open(places, x.shape, node.get("axis", 0) % x.ndim), updates)


def scatter_nd(node: Node, x: Array, places: Array, updates: Array) -> Array:
    """x with entries or slices replaced or added to."""
    index = tuple(_counted(places[..., i], x.shape[i]) for i in range(places.shape[-1]))
    return _write(node, x, index, updates)


def _write(node: Node, x: Array, index: tuple[Array, ...], updates: Array) -> Array:
    """Return x with updates written at an index; those out of bounds are dropped."""
    at: Any = jnp.asarray(x).at[index]
    methods = {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}
    return methods[node.get("reduction", "none")](updates, mode="drop")


def _open(places: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """Return one index array per axis: the entry's own position, except along one axis."""
    grid = np.ogrid[tuple(slice(n) for n in places.shape)] if places.ndim else ()
    return tuple(_counted(places, shape[axis]) if i == axis else grid[i] for i in range(len(shape)))


def _counted(places: Array, size: int) -> Array:
    """Return indices counted from 0; those out of bounds stay out of bounds."""
    places = jnp.asarray(places)
    return (
        places
        if places.dtype == np.uint8
        else jnp.where(places < -size, size, jnp.where(places < 0, places + size, places))
    )


def one_hot(node: Node, places: Array, depth: Array, values: Array) -> Array:
    """values[1] at each index along a new axis, values[0] elsewhere."""
    [count] = integers(depth, "a depth")
    axis, rank = node.get("axis", -1), places.ndim + 1
    axis %= rank
    places = jnp.expand_dims(jnp.asarray(places).astype(np.int64), axis)
    line = np.arange(count).reshape([count if i == axis else 1 for i in range(rank)])
    return jnp.where((places == line) | (places + count == line), values[1], values[0])


def top_k(node: Node, x: Array, k: Array) -> Result:
    """The k largest or smallest entries along an axis, and their indices; ties go to the first."""
    [count] = integers(k, "a count")
    axis = node.get("axis", -1)
    places = jnp.argsort(x, axis=axis, stable=True, descending=bool(node.get("largest", 1)))
    places = places[tuple(slice(count) if i == axis % x.ndim else slice(None) for i in range(x.ndim))].astype(np.int64)
    return jnp.take_along_axis(x, places, axis), places


def cum_sum(node: Node, x: Array, axis: Array) -> Array:
    """Cumulative sums along an axis."""
    [along] = integers(axis, "an axis")
    x = jnp.flip(x, along) if node.get("reverse", 0) else x
    done = jnp.cumsum(x, along, dtype=x.dtype)
    if node.get("exclusive", 0):
        ahead = [(i == along % x.ndim, 0) for i in range(x.ndim)]
        done = jnp.pad(done, ahead)[tuple(slice(n) for n in x.shape)]
    return jnp.flip(done, along) if node.get("reverse", 0) else done


OPERATORS: Mapping[str, Callable[..., Result]] = {
    "CumSum": cum_sum,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
}
