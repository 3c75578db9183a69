"""Matrix products and convolutions."""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Unsupported

lax = jax.lax

SMALL_KERNEL = 80  # up to so many kernel entries, a convolution is computed as a product
Pads = tuple[int, int]
EXACT = jax.lax.Precision.HIGHEST  # by default a GPU rounds float32 to fewer bits


def pads_of(
    node: Node, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[Pads]:
    """Return the pads at the start and end of each axis, from the attributes."""
    auto = node.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return [(0, 0)] * len(kernel)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small = total // 2
            pads.append((small, total - small) if auto == "SAME_UPPER" else (total - small, small))
        return pads
    explicit = node.get("pads") or [0] * (2 * len(kernel))
    return list(zip(explicit[: len(kernel)], explicit[len(kernel) :], strict=True))


def conv(node: Node, x: Array, w: Array, b: Array | None = None) -> Array:
    """The convolution of x [N, C, …] with kernels [M, C / group, …]."""
    rank = x.ndim - 2
    strides, dilations = node.get("strides") or [1] * rank, node.get("dilations") or [1] * rank
    pads = pads_of(node, x.shape[2:], w.shape[2:], strides, dilations)
    y = convolved(x, w, strides, pads, dilations, node.get("group", 1))
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def convolved(
    x: Array, w: Array, strides: Sequence[int], pads: Sequence[Pads], dilations: Sequence[int], groups: int
) -> Array:
    """Return a convolution in a form that is fast in XLA on the CPU.

    Measured in a loop: channels as the second axis take up to fifty times as long as in the last one, and groups four
    to nine times as long as a product of windows. The product is also faster for small kernels.
    """
    if groups > 1 or math.prod(w.shape[1:]) <= SMALL_KERNEL:
        return by_product(x, w, strides, pads, dilations, groups)
    axes = "DHW"[-(x.ndim - 2) :]
    y = lax.conv_general_dilated(
        jnp.moveaxis(x, 1, -1),
        jnp.moveaxis(w, (0, 1), (-1, -2)),
        strides,
        pads,
        rhs_dilation=dilations,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        precision=EXACT,
    )
    return jnp.moveaxis(y, -1, 1)


def by_product(
    x: Array, w: Array, strides: Sequence[int], pads: Sequence[Pads], dilations: Sequence[int], groups: int
) -> Array:
    """Return a convolution as one product per group, of kernels [M, C·K] and windows [C·K, N·…]."""
    count = math.prod(w.shape[1:])
    columns = jnp.moveaxis(jnp.pad(x, [(0, 0), (0, 0), *pads]), 0, 1)  # [C, N, …]
    entries = entries_by_place(columns, w.shape[2:], strides, dilations)
    stacked = jnp.stack(entries, 1).reshape(groups, count, -1)
    y = product(w.reshape(groups, -1, count), stacked).reshape(w.shape[0], x.shape[0], *entries[0].shape[2:])
    return jnp.moveaxis(y, 0, 1)


def entries_by_place(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Array]:
    """Return, for each kernel entry in row-major order, the values all windows of a padded x [., ., …] have there."""
    counts = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    entries = []
    for place in np.ndindex(*kernel):
        cuts = [
            slice(i * d, i * d + (count - 1) * s + 1, s)
            for i, d, s, count in zip(place, dilations, strides, counts, strict=True)
        ]
        entries.append(x[(..., *cuts)])
    return entries


def conv_transpose(node: Node, x: Array, w: Array, b: Array | None = None) -> Array:
    """The transposed convolution of x [N, C, …] with kernels [C, M / group, …]."""
    rank, groups = x.ndim - 2, node.get("group", 1)
    strides, dilations = node.get("strides") or [1] * rank, node.get("dilations") or [1] * rank
    more, kernel = node.get("output_padding") or [0] * rank, w.shape[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _transposed_pads(node, x.shape[2:], reach, strides, more)
    around = [(r - 1 - a, r - 1 - b + m, s - 1) for r, (a, b), m, s in zip(reach, pads, more, strides, strict=True)]
    spread = lax.pad(jnp.asarray(x), jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *around])
    w = jnp.flip(w, range(2, w.ndim)).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    w = jnp.swapaxes(w, 1, 2).reshape(groups * w.shape[2], w.shape[1], *kernel)
    y = convolved(spread, w, [1] * rank, [(0, 0)] * rank, dilations, groups)
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def _transposed_pads(
    node: Node, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int], more: Sequence[int]
) -> list[Pads]:
    auto, output_sizes = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if output_sizes is None and auto not in ("SAME_UPPER", "SAME_LOWER"):
        return pads_of(node, sizes, reach, strides, [1] * len(sizes))
    output_sizes = (
        [n * s for n, s in zip(sizes, strides, strict=True)] if output_sizes is None else output_sizes[-len(sizes) :]
    )
    pads = []
    for n, s, r, m, size in zip(sizes, strides, reach, more, output_sizes, strict=True):
        total = s * (n - 1) + m + r - size
        if total < 0:
            raise Unsupported("an output_shape larger than the kernels reach")
        half = total // 2
        pads.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    return pads


def product(a: Array, b: Array) -> Array:
    """Return the matrix product over the last axes, in the operands' common type."""
    if isinstance(a, np.ndarray) and a.ndim == 1 and b.ndim > 1 and (a == 1).all():
        return jnp.sum(b, axis=-2, dtype=b.dtype)  # faster
    if a.ndim == b.ndim == 2 and b.shape[1] == 1:
        return jnp.matmul(b.T, a.T, precision=EXACT).T  # avoids a copy of A if it is a transpose
    return jnp.matmul(a, b, precision=EXACT)


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


OPERATORS: Mapping[str, Callable[..., Array]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Det": lambda node, x: jnp.linalg.det(x),
    "Einsum": lambda node, *x: jnp.einsum(node.get("equation").replace(" ", ""), *x, precision=EXACT),
    "Gemm": gemm,
    "MatMul": lambda node, a, b: product(a, b),
}
