"""Matrix products, in full precision on every device."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node

EXACT = jax.lax.Precision.HIGHEST  # by default a GPU rounds float32 to fewer bits


def product(a: Array, b: Array) -> Array:
    """Return the matrix product over the last axes, in the operands' common type."""
    if isinstance(a, np.ndarray) and a.ndim == 1 and b.ndim > 1 and (a == 1).all():
        return jnp.sum(b, axis=-2, dtype=b.dtype)  # faster
    if a.ndim == b.ndim == 2 and b.shape[1] == 1:
        return jnp.matmul(b.T, a.T, precision=EXACT).T  # avoids a copy of A if it is a transpose
    return jnp.matmul(a, b, precision=EXACT)


def matmul(node: Node, a: Array, b: Array) -> Array:
    """A·B."""
    return product(a, b)


def gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    """α·A·B + β·C."""
    a = a.T if node.get("transA", 0) else a
    b = b.T if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    result = product(a, b)
    result = result if alpha == 1 else result * _like(alpha, result)
    if c is None or beta == 0:
        return result
    return result + (c if beta == 1 else c * _like(beta, result))


def _like(number: float, x: Array) -> Array:
    return np.asarray(number).astype(x.dtype)


def einsum(node: Node, *inputs: Array) -> Array:
    """Einstein summation."""
    return jnp.einsum(node.get("equation").replace(" ", ""), *inputs, precision=EXACT)


def det(node: Node, x: Array) -> Array:
    """The determinant."""
    return jnp.linalg.det(x)


OPERATORS: Mapping[str, Callable[..., Array]] = {"Det": det, "Einsum": einsum, "Gemm": gemm, "MatMul": matmul}
