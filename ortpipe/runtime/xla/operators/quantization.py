"""Quantization and dequantization."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Unsupported
from ortpipe.runtime.xla.operators.elementwise import as_type


def _by_axis(node: Node, x: Array, part: Array) -> Array:
    """Return a scale or zero point so that it broadcasts to x."""
    if node.get("block_size", 0):
        raise Unsupported("scales by block")
    if part.ndim == 0 or part.size == 1:
        return part.reshape(())
    axis = node.get("axis", 1) % x.ndim
    return part.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def quantize(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """Round(x / scale) + zero, clipped to the type's range."""
    dtype = np.dtype(np.uint8)
    if zero is not None:
        dtype = zero.dtype
    elif node.get("output_dtype", 0):
        dtype = as_type(np.zeros(()), node.get("output_dtype")).dtype
    if dtype.kind not in "iu":
        raise Unsupported(f"integers of type {dtype}")
    bounds = np.iinfo(dtype)
    steps = jnp.round(x / _by_axis(node, x, scale))
    shift = 0 if zero is None else _by_axis(node, x, zero).astype(np.int32)
    return jnp.clip(steps.astype(np.float32) + shift, bounds.min, bounds.max).astype(dtype)


def dequantize(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """(x − zero)·scale."""
    shift = 0 if zero is None else _by_axis(node, x, zero).astype(np.int32)
    return (jnp.asarray(x).astype(np.int32) - shift).astype(scale.dtype) * _by_axis(node, x, scale)


OPERATORS: Mapping[str, Callable[..., Array]] = {"DequantizeLinear": dequantize, "QuantizeLinear": quantize}
