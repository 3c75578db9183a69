"""Operators that move or create entries; their sizes must be known during tracing."""

import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Result, Unsupported, axes_of, constant, integers
from ortpipe.runtime.xla.operators.elementwise import as_type


def constant_node(node: Node) -> Array:
    """The value of an attribute."""
    for name, kind in (("value_float", np.float32), ("value_int", np.int64)):
        for key in (name, f"{name}s"):
            if key in node.attributes:
                return np.array(node.attributes[key], kind)
    value = node.get("value")
    if not isinstance(value, np.ndarray):
        raise Unsupported("a value that is not an array of numbers")
    return value


def constant_of_shape(node: Node, sizes: Array) -> Array:
    """One value in a given shape."""
    value = node.get("value", np.zeros(1, np.float32))
    return jnp.full(integers(sizes, "a shape"), value.reshape(()), value.dtype)


def reshape(node: Node, x: Array, sizes: Array) -> Array:
    """x in another shape; 0 keeps a size, −1 is inferred."""
    shape = integers(sizes, "a shape")
    if not node.get("allowzero", 0):
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return x.reshape(shape)


def flatten(node: Node, x: Array) -> Array:
    """x as a matrix."""
    axis = node.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def split(node: Node, x: Array, sizes: Array | None = None) -> Result:
    """x split along an axis."""
    axis = node.get("axis", 0)
    if sizes is not None:
        parts = integers(sizes, "sizes")
    else:
        count = node.get("num_outputs", node.outputs)
        each = -(-x.shape[axis] // count)
        parts = [min(each, max(0, x.shape[axis] - each * i)) for i in range(count)]
    return tuple(jnp.split(x, np.cumsum(parts)[:-1].tolist(), axis))


def expand(node: Node, x: Array, sizes: Array) -> Array:
    """x and a shape, broadcast against each other."""
    return jnp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(integers(sizes, "a shape"))))


def slice_(
    node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    """A slice of x."""
    first, last = integers(starts, "places"), integers(ends, "places")
    along = range(len(first)) if axes is None else integers(axes, "places")
    by = [1] * len(first) if steps is None else integers(steps, "places")
    cut: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        # as in Python, except that a start in front of the first entry is the first one
        cut[axis % x.ndim] = slice(max(start, -x.shape[axis]), end, step)
    return x[tuple(cut)]


def pad(node: Node, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    """x padded or cropped at its ends."""
    ends = integers(pads, "pads")
    widths = [(0, 0)] * x.ndim
    for place, axis in enumerate(range(x.ndim) if axes is None else integers(axes, "axes")):
        widths[axis % x.ndim] = (ends[place], ends[place + len(ends) // 2])
    cut = tuple(slice(max(0, -a), x.shape[i] - max(0, -b)) for i, (a, b) in enumerate(widths))
    widths = [(max(0, a), max(0, b)) for a, b in widths]
    mode = node.get("mode", "constant")
    if mode != "constant":
        return jnp.pad(x[cut], widths, mode)
    value = 0 if value is None else value
    return jnp.pad(x[cut], widths, constant_values=jnp.asarray(value).astype(x.dtype).reshape(()))


def range_(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    """Numbers from start to limit, by delta."""
    first, last, step = (constant(part, "a range")[()] for part in (start, limit, delta))
    count = max(0, math.ceil((last - first) / step))
    return (first + np.arange(count) * step).astype(start.dtype)


def eye_like(node: Node, x: Array) -> Array:
    """The identity matrix, or one with a shifted diagonal."""
    dtype = x.dtype if node.get("dtype") is None else as_type(np.zeros(()), node.get("dtype")).dtype
    return jnp.eye(x.shape[0], x.shape[1], k=node.get("k", 0), dtype=dtype)


def trilu(node: Node, x: Array, k: Array | None = None) -> Array:
    """The upper or lower triangle."""
    by = 0 if k is None else integers(k, "a diagonal")[0]
    return jnp.triu(x, by) if node.get("upper", 1) else jnp.tril(x, by)


def depth_to_space(node: Node, x: Array) -> Array:
    """Move channels into blocks of pixels."""
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        x = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // b**2, h * b, w * b)


def space_to_depth(node: Node, x: Array) -> Array:
    """Move blocks of pixels into channels."""
    n, c, h, w = x.shape
    b = node.get("blocksize")
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = x.reshape(n, c, h // b, b, w // b, b).transpose(order)
    return x.reshape(n, c * b**2, h // b, w // b)


def reverse_sequence(node: Node, x: Array, lengths: Array) -> Array:
    """Reverse the first entries of each row."""
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    moved = jnp.moveaxis(x, (batch, time), (0, 1))
    place, ends = np.arange(moved.shape[1])[None, :], jnp.asarray(lengths)[:, None]
    source = jnp.where(place < ends, ends - 1 - place, place).reshape(*moved.shape[:2], *[1] * (x.ndim - 2))
    return jnp.moveaxis(jnp.take_along_axis(moved, source, 1), (0, 1), (batch, time))


def compress(node: Node, x: Array, condition: Array) -> Array:
    """The entries selected by a constant condition."""
    places = np.flatnonzero(constant(condition, "a condition"))
    return x.reshape(-1)[places] if node.get("axis") is None else jnp.take(x, places, node.get("axis"))


def non_zero(node: Node, x: Array) -> Array:
    """The indices of a constant's nonzero entries."""
    return np.array(np.nonzero(constant(x, "the input of NonZero")), np.int64)


OPERATORS: Mapping[str, Callable[..., Result]] = {
    "Compress": compress,
    "Concat": lambda node, *inputs: jnp.concatenate(inputs, node.get("axis", 0)),
    "Constant": constant_node,
    "ConstantOfShape": constant_of_shape,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "EyeLike": eye_like,
    "Flatten": flatten,
    "NonZero": non_zero,
    "Pad": pad,
    "Range": range_,
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "Shape": lambda node, x: np.array(x.shape[slice(node.get("start", 0), node.get("end"))], np.int64),
    "Size": lambda node, x: np.array(math.prod(x.shape), np.int64),
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": lambda node, x, axes=None: jnp.squeeze(x, axes_of(axes, x.ndim)),
    "Tile": lambda node, x, repeats: jnp.tile(x, integers(repeats, "repeats")),
    "Transpose": lambda node, x: jnp.transpose(x, node.get("perm")),
    "Trilu": trilu,
    "Unsqueeze": lambda node, x, axes: jnp.expand_dims(x, axes_of(axes, x.ndim + axes.size) or ()),
}
