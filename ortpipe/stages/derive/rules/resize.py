"""Resize: separable and linear, so that its gradient is one small constant matrix per resized axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients, Rules
from ortpipe.stages.derive.dimensions import ranked
from ortpipe.stages.derive.rules.pooling import Matrix, along
from ortpipe.stages.derive.rules.windows import not_static

Vector = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: from `size` places to `count`, output place o lying at about o / scale."""

    axis: int
    size: int
    count: int
    scale: float
    crop: tuple[float, float] = (0.0, 1.0)

    @property
    def same(self) -> bool:
        """Whether nothing changes along it."""
        return self.scale == 1 and self.crop == (0.0, 1.0) and self.size == self.count


def resize(op: Backward, node: ir.Node, dy: ir.Value, x: ir.Value, *_: ir.Value | None) -> Gradients:
    """y = (M₁ ⊗ M₂ ⊗ …)·x, one interpolation matrix per axis: dx = (M₁ᵀ ⊗ M₂ᵀ ⊗ …)·dy.

    All modes and coordinate transformations, antialias, exclude_outside, crops; what is extrapolated has no gradient.
    Scales and the sizes of the resized axes must be static; the other axes, so the batch, may be free.
    """
    moved = [(a, _matrix(node, a)) for a in _axes(op, node) if not a.same]
    blocks = {a.axis: _block(a, matrix) for a, matrix in moved}
    rank = ranked(x).rank()
    if moved and None not in blocks.values() and 3 <= rank <= 5 and min(blocks) >= 2:
        # every place of x is copied to a block of y: a pool sums the block, several times faster than matrices
        window = [blocks.get(i) or 1 for i in range(2, rank)]
        pooled = op.AveragePool(dy, kernel_shape=window, strides=window)
        pooled.shape = x.shape
        return [op.Mul(pooled, op.like(math.prod(window), x))]
    moved.sort(key=lambda pair: pair[0].size / pair[0].count)  # the strongest reduction first
    for a, matrix in moved:
        dy = along(op, dy, a.axis, matrix.T)
        dy.shape = x.shape if a is moved[-1][0] else dy.shape
    return [dy]


def _block(axis: Axis, matrix: Matrix) -> int | None:
    """Return n where every place is copied to n neighbouring ones and nothing else happens."""
    n, rest = divmod(axis.count, axis.size)
    return n if rest == 0 and np.array_equal(matrix, np.kron(np.eye(axis.size), np.ones((n, 1)))) else None


def _axes(op: Backward, node: ir.Node) -> list[Axis]:
    """Return what happens to each axis that the node names, from its scales or sizes."""
    x, roi, scales, sizes = (*node.inputs, None, None, None)[:4]
    if x is None or x.shape is None:
        raise not_static(node, x, "the rank")
    rank, y = x.shape.rank(), node.outputs[0].shape
    named = [a % rank for a in node.attributes.get_ints("axes", range(rank))]
    dims = [x.shape[a] for a in named]
    crops = [(0.0, 1.0)] * len(named)
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        corners = _constant(op, node, roi)
        crops = [(corners[i], corners[i + len(named)]) for i in range(len(named))]
    if scales is not None and _given(scales):
        factors, wanted = _constant(op, node, scales), None
    else:
        factors, wanted = None, _wanted(op, node, sizes, [y[a] if y is not None else None for a in named], dims)
    axes, policy = [], node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    for i, (axis, size, crop) in enumerate(zip(named, dims, crops, strict=True)):
        factor = factors[i] if factors is not None else None
        target = wanted[i] if wanted is not None else None
        if not isinstance(size, int):
            # a free axis stays as it is, and so does the batch whatever its new size is called
            if factor == 1 or (factor is None and target is None and axis == 0 and policy == "stretch"):
                continue
            raise not_static(node, x, f"resized axis {axis}")
        if factor is not None:
            axes.append(Axis(axis, size, math.floor(factor * size), factor, crop))
        elif target is not None:
            axes.append(Axis(axis, size, target, target / size, crop))
    return _keeping_ratio(axes, policy) if wanted is not None else axes


def _keeping_ratio(axes: list[Axis], policy: str) -> list[Axis]:
    """Return the axes with one scale for all: the smallest (not_larger) or the largest (not_smaller)."""
    if policy == "stretch" or not axes:
        return axes
    scale = (min if policy == "not_larger" else max)(a.scale for a in axes)
    return [Axis(a.axis, a.size, math.floor(scale * a.size + 0.5), scale, a.crop) for a in axes]


def _given(value: ir.Value) -> bool:
    """Whether an optional input is there: exporters also leave it out by an empty tensor."""
    return value.shape is None or list(value.shape) != [0]


def _constant(op: Backward, node: ir.Node, value: ir.Value | None) -> list[float]:
    tensor = op.constant(value)
    if tensor is None:
        raise not_static(node, value, "the value")
    return [float(v) for v in tensor.numpy().ravel()]


def _wanted(op: Backward, node: ir.Node, sizes: ir.Value | None, y: list[Any], x: list[Any]) -> list[int | None]:
    """Return the output's sizes: the constant's, or else what shape inference found; None where both are free."""
    tensor = op.constant(sizes)
    if tensor is not None:
        return [int(v) for v in tensor.numpy().ravel()]
    if any(isinstance(have, int) and not isinstance(want, int) for have, want in zip(x, y, strict=True)):
        raise not_static(node, sizes, "the value")
    return [want if isinstance(want, int) else None for want in y]


def _matrix(node: ir.Node, a: Axis) -> Matrix:
    """Return the interpolation matrix (count × size) of one axis, as ONNX's Resize-19 defines it."""
    # where nearest jumps, rounding decides: float32, as onnxruntime computes it
    precise = np.float32 if node.attributes.get_string("mode", "nearest") == "nearest" else np.float64
    place = _places(a, node.attributes.get_string("coordinate_transformation_mode", "half_pixel"), precise)
    left = np.ceil(place) - 1  # the nearest place before; a place that is hit exactly counts as the one after
    ratio = place - left
    mode = node.attributes.get_string("mode", "nearest")
    if mode == "nearest":
        offsets = np.array([0.0, 1.0])
        weights = _nearest(ratio, node.attributes.get_string("nearest_mode", "round_prefer_floor"))
    else:
        shrink = min(a.scale, 1.0) if node.attributes.get_int("antialias", 0) else 1.0
        width, kernel = (1, _triangle) if mode == "linear" else (2, _cubic)
        start = math.floor(-width / shrink) + 1
        offsets = np.arange(start, 2.0 - start)
        weights = kernel(shrink * (offsets - ratio[:, None]), node.attributes.get_float("cubic_coeff_a", -0.75))
        weights = weights / weights.sum(axis=1, keepdims=True) if node.attributes.get_int("antialias", 0) else weights
    places = left[:, None] + offsets
    if node.attributes.get_int("exclude_outside", 0):
        weights = weights * ((places >= 0) & (places < a.size))
        weights = weights / weights.sum(axis=1, keepdims=True)
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        weights = weights * ((place >= 0) & (place <= a.size - 1))[:, None]
    matrix = np.zeros((a.count, a.size))
    rows = np.broadcast_to(np.arange(a.count)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, a.size - 1).astype(np.int64)), weights)
    return matrix


def _places(a: Axis, transformation: str, precise: type[np.floating[Any]]) -> Vector:
    """Return where each output place lies on the input axis; length is the output's size before it is rounded."""
    o, scale = np.arange(a.count, dtype=precise), precise(a.scale)
    length = scale * precise(a.size)
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


def _nearest(ratio: Vector, mode: str) -> Matrix:
    """Return the weights of the places before and after."""
    after = {
        "round_prefer_floor": ratio > 0.5,
        "round_prefer_ceil": ratio >= 0.5,
        "floor": ratio == 1,
        "ceil": ratio > 0,
    }[mode]
    return np.stack([~after, after], axis=1).astype(np.float64)


def _triangle(t: Matrix, _: float) -> Matrix:
    """max(1 − |t|, 0)."""
    return np.maximum(1 - np.abs(t), 0)


def _cubic(t: Matrix, a: float) -> Matrix:
    """Keys' kernel: (a+2)|t|³ − (a+3)t² + 1 up to 1, a|t|³ − 5a·t² + 8a|t| − 4a up to 2, then 0."""
    t = np.abs(t)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


RULES: Rules = {"Resize": resize}
