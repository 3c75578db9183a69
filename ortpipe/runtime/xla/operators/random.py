"""Random numbers: determined by the epoch's seed, the node and the step (Threefry), not by the attribute `seed`."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Result, constant
from ortpipe.runtime.xla.operators.elementwise import as_type

FLOAT = 1  # ONNX's code for float32


def _key(node: Node) -> Any:
    assert node.key is not None
    return node.key()


def dropout(node: Node, x: Array, ratio: Array | None = None, training: Array | None = None) -> Result:
    """x / (1 − ratio) where a random number is at least the ratio, else 0; and the mask."""
    trains = training is not None and bool(constant(training, "a mode"))
    if not trains:
        return (x, jnp.ones(x.shape, bool))[: node.outputs]
    share = np.asarray(0.5).astype(x.dtype) if ratio is None else ratio
    stays = jax.random.uniform(_key(node), x.shape, np.float32) >= jnp.asarray(share).astype(np.float32)
    y = jnp.where(stays, x / (1 - share).astype(x.dtype), jnp.zeros((), x.dtype))
    return (y, stays)[: node.outputs]


def _random(*, normal: bool) -> Callable[..., Array]:
    """Return the operator that draws numbers: of its attribute `shape`, or of the shape of an input."""

    def run(node: Node, like: Array | None = None) -> Array:
        shape, dtype = tuple(node.get("shape")) if like is None else like.shape, _dtype(node, like)
        kind = np.float64 if dtype == np.float64 else np.float32
        if normal:
            drawn = jax.random.normal(_key(node), shape, kind)
            return (drawn * kind(node.get("scale", 1.0)) + kind(node.get("mean", 0.0))).astype(dtype)
        low, high = kind(node.get("low", 0.0)), kind(node.get("high", 1.0))
        return (jax.random.uniform(_key(node), shape, kind) * (high - low) + low).astype(dtype)

    return run


def _dtype(node: Node, like: Array | None) -> Any:
    to = node.get("dtype")
    if to is None and like is not None:
        return like.dtype
    return as_type(np.zeros(()), FLOAT if to is None else to).dtype


def bernoulli(node: Node, x: Array) -> Array:
    """1 with probability x, else 0."""
    return (jax.random.uniform(_key(node), x.shape, np.float32) < x).astype(_dtype(node, x))


OPERATORS: Mapping[str, Callable[..., Result]] = {
    "Bernoulli": bernoulli,
    "Dropout": dropout,
    "RandomNormal": _random(normal=True),
    "RandomNormalLike": _random(normal=True),
    "RandomUniform": _random(normal=False),
    "RandomUniformLike": _random(normal=False),
}
