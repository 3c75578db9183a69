"""Resize is separable and linear, so its gradient is one small constant matrix per resized axis."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules, ranked
from ortpipe.autodiff.rules.pooling import Matrix, along
from ortpipe.autodiff.windows import not_static
from ortpipe.graph.core.types import equal

Vector = npt.NDArray[np.floating[Any]]
# The distance to the previous pixel from which the next one counts as nearer
NEAREST: dict[str, Callable[[Vector], npt.NDArray[np.bool_]]] = {
    "round_prefer_floor": lambda ratio: ratio > 0.5,
    "round_prefer_ceil": lambda ratio: ratio >= 0.5,
    "floor": lambda ratio: ratio == 1,
    "ceil": lambda ratio: ratio > 0,
}


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: from `size` to `count`; output o is at about o / scale."""

    axis: int
    size: int
    count: int
    scale: float
    crop: tuple[float, float] = (0.0, 1.0)

    @property
    def same(self) -> bool:
        """Whether the axis is unchanged."""
        return self.scale == 1 and self.crop == (0.0, 1.0) and self.size == self.count


def resize(op: Backward, node: Node, dy: Value, x: Value, *_: Value | None) -> Gradients:
    """y = (M₁ ⊗ M₂ ⊗ …)·x, one interpolation matrix per axis: dx = (M₁ᵀ ⊗ M₂ᵀ ⊗ …)·dy.

    Supports all modes and coordinate transformations, antialias, exclude_outside and crops; extrapolated values have no
    gradient. If an axis's size or scale is symbolic, or runtimes disagree, Mᵢ is the operator applied to the identity.
    """
    axes, free = _axes(op, node)
    if free:
        return [_resize_free(op, node, dy, x, axes, free)]
    resized = [(a, _matrix(node, a)) for a in axes if not a.same]
    blocks = {a.axis: _block_size(a, matrix) for a, matrix in resized}
    rank = ranked(x).rank()
    if resized and None not in blocks.values() and 3 <= rank <= 5 and min(blocks) >= 2:
        # every pixel of x is copied to a block of y: a pool sums the block, several times faster than matrices
        window = [blocks.get(i) or 1 for i in range(2, rank)]
        averages = op.AveragePool(dy, kernel_shape=window, strides=window)
        averages.shape = x.shape
        return [averages * math.prod(window)]
    resized.sort(key=lambda pair: pair[0].size / pair[0].count)  # the strongest reduction first
    for a, matrix in resized:
        dy = along(op, dy, a.axis, matrix.T)
        dy.shape = x.shape if a is resized[-1][0] else dy.shape
    return [dy]


def _resize_free(op: Backward, node: Node, dy: Value, x: Value, axes: Sequence[Axis], free: Sequence[int]) -> Value:
    for a in axes:
        if not a.same:
            dy = along(op, dy, a.axis, _matrix(node, a).T)
    for place in free:
        dy = along(op, dy, _named_axes(node, x)[place], op.Transpose(_of_unit_matrix(op, node, x, place)))
    dy.shape = x.shape
    return dy


def _of_unit_matrix(op: Backward, node: Node, x: Value, place: int) -> Value:
    """Return the matrix (count × size) of a named axis by resizing an identity matrix [1, 1, size, size]."""
    named, (_, roi, scales, sizes) = _named_axes(node, x), (*node.inputs, None, None, None)[:4]

    def with_third(value: Value, before: list[int], index: int, after: int) -> tuple[Value, ...]:
        return op.cast(op.ints(before), value), op.Gather(value, [index]), op.cast(op.ints([after]), value)

    corners = size = factor = None
    if _crops(node):
        assert roi is not None
        low, high = with_third(roi, [0, 0], place, 0), with_third(roi, [1, 1], place + len(named), 1)
        corners = op.Concat(*low, *high, axis=0)
    if _is_present(scales):
        assert scales is not None
        factor = op.Concat(*with_third(scales, [1, 1], place, 1), axis=0)
    else:
        assert sizes is not None
        size = op.Concat(op.ints([1, 1]), op.Gather(sizes, [place]), op.Reshape(op.dim(x, named[place]), [1]), axis=0)
    omitted = ("axes", "extrapolation_value", "keep_aspect_ratio_policy")
    attributes: dict[str, Any] = {name: value for name, value in node.attributes.items() if name not in omitted}
    inputs = [op.Unsqueeze(op.eye(x, named[place]), [0, 1]), corners, factor, size]
    return op.Squeeze(op.Resize(*inputs[: 3 if size is None else 4], **attributes), [0, 1])


def _named_axes(node: Node, x: Value) -> list[int]:
    rank = ranked(x).rank()
    return [a % rank for a in node.attributes.get_ints("axes", range(rank))]


def _crops(node: Node) -> bool:
    return node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"


def _is_present(scales: Value | None) -> bool:
    return scales is not None and (scales.shape is None or list(scales.shape) != [0])  # empty means absent


def _block_size(axis: Axis, matrix: Matrix) -> int | None:
    """Return n if the matrix only copies every entry to n adjacent ones, else None."""
    n, remainder = divmod(axis.count, axis.size)
    return n if remainder == 0 and np.array_equal(matrix, np.kron(np.eye(axis.size), np.ones((n, 1)))) else None


def _axes(op: Backward, node: Node) -> tuple[list[Axis], list[int]]:
    """Return how each named axis is resized, by scales or sizes, and the positions of symbolic axes in the list."""
    (x, roi, scales, sizes), y = (*node.inputs, None, None, None)[:4], node.outputs[0].shape
    assert x is not None
    named = _named_axes(node, x)
    crops: list[tuple[float, float] | None] = [(0.0, 1.0)] * len(named)
    policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if _crops(node):
        corners = _numbers(op, roi)
        crops = list(zip(corners[: len(named)], corners[len(named) :], strict=True)) if corners else [None] * len(named)
    factors: Sequence[float | None] = [None] * len(named)
    counts: Sequence[Any] = [None] * len(named)
    if _is_present(scales):
        factors = _numbers(op, scales) or factors
    elif y is not None:
        static_counts = [y[a] if isinstance(y[a], int) else None for a in named]
        counts = [int(n) for n in _numbers(op, sizes) or ()] or static_counts
    axes, free = [], []
    for place, (axis, crop, factor, count) in enumerate(zip(named, crops, factors, counts, strict=True)):
        size = ranked(x)[axis]
        if (
            isinstance(size, int)
            and _is_sure(node, size, factor)
            and crop
            and (factor is not None or count is not None)
        ):
            scale = count / size if factor is None else factor
            axes.append(Axis(axis, size, count if factor is None else math.floor(scale * size), scale, crop))
            continue
        # a symbolic axis may be unchanged; the batch is, even if its new size has another name
        unchanged = factor is None and count is None and (axis == 0 or (y is not None and equal(size, y[axis])))
        if not (factor == 1 or (unchanged and policy == "stretch")) or crop != (0.0, 1.0):
            free.append(place)
    if policy == "stretch" or not (axes or free) or _is_present(scales):
        return axes, free
    if free:
        raise not_static(node, x, f"resized axis {named[free[0]]}")
    scale = (min if policy == "not_larger" else max)(a.scale for a in axes)  # the same for all axes
    return [Axis(a.axis, a.size, math.floor(scale * a.size + 0.5), scale, a.crop) for a in axes], free


def _is_sure(node: Node, size: int, factor: float | None) -> bool:
    """Return whether runtimes agree on coordinates: ONNX aligns corners before rounding the size, onnxruntime after."""
    transformation = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    return (
        factor is None
        or transformation != "align_corners"
        or math.isclose(size * factor, round(size * factor), rel_tol=1e-6)
    )


def _numbers(op: Backward, value: Value | None) -> list[float] | None:
    tensor = op.constant(value)
    return [float(v) for v in tensor.numpy().ravel()] if tensor is not None else None


def _matrix(node: Node, a: Axis) -> Matrix:
    """Return the interpolation matrix (count × size) of one axis, as ONNX's Resize-19 defines it."""
    attributes, mode = node.attributes, node.attributes.get_string("mode", "nearest")
    transformation = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    antialias = bool(attributes.get_int("antialias", 0))
    # mode nearest depends on rounding: use float32 as onnxruntime does
    place = _places(a, transformation, np.float32 if mode == "nearest" else np.float64)
    before = np.ceil(place) - 1  # the previous pixel; an exact hit counts as the next one
    ratio = place - before
    if mode == "nearest":
        offsets = np.array([0.0, 1.0])
        after = NEAREST[attributes.get_string("nearest_mode", "round_prefer_floor")](ratio)
        weights = np.stack([~after, after], axis=1).astype(np.float64)
    else:
        shrink = min(a.scale, 1.0) if antialias else 1.0
        start = math.floor((-1 if mode == "linear" else -2) / shrink) + 1
        offsets = np.arange(start, 2.0 - start)
        distance = np.abs(shrink * (offsets - ratio[:, None]))
        linear = mode == "linear"
        weights = (
            np.maximum(1 - distance, 0) if linear else _cubic(distance, attributes.get_float("cubic_coeff_a", -0.75))
        )
        weights = weights / weights.sum(axis=1, keepdims=True) if antialias else weights
    places = before[:, None] + offsets
    if attributes.get_int("exclude_outside", 0):
        weights = weights * ((places >= 0) & (places < a.size))
        weights = weights / weights.sum(axis=1, keepdims=True)
    if transformation == "tf_crop_and_resize":
        weights = weights * ((place >= 0) & (place <= a.size - 1))[:, None]
    matrix = np.zeros((a.count, a.size))
    rows = np.broadcast_to(np.arange(a.count)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, a.size - 1).astype(np.int64)), weights)
    return matrix


def _places(a: Axis, transformation: str, precise: type[np.floating[Any]]) -> Vector:
    """Return the coordinate on the input axis of each output position."""
    o, scale = np.arange(a.count, dtype=precise), precise(a.scale)
    length = scale * precise(a.size)  # the output's size before rounding
    if transformation == "align_corners":
        return o * 0 if length == 1 else o * (a.size - 1) / (length - 1)
    if transformation == "asymmetric":
        return o / scale
    if transformation == "tf_crop_and_resize":
        low, high = a.crop
        if length == 1:
            return o * 0 + (high - low) * (a.size - 1) / 2 + low * (a.size - 1)
        return o * (high - low) * (a.size - 1) / (length - 1) + low * (a.size - 1)
    if transformation == "pytorch_half_pixel" and length == 1:
        return o * 0 - 0.5
    offset = precise(a.size) / 2 * (1 - precise(a.count) / length) if transformation == "half_pixel_symmetric" else 0
    return offset + (o + precise(0.5)) / scale - precise(0.5)


def _cubic(t: Matrix, a: float) -> Matrix:
    """Keys' kernel: (a+2)t³ − (a+3)t² + 1 up to 1, a·t³ − 5a·t² + 8a·t − 4a up to 2, then 0."""
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


RULES: Rules = {"Resize": resize}
