"""Interpolation at computed positions: GridSample and RoiAlign as a Gather of neighbours with weights.

Along each axis the value at p = ⌊p⌋ + r is Σ_k w_k(r) · x[⌊p⌋ + k], with w_k a polynomial of r; several axes multiply
their weights. So the gradient of x is the scatter of that Gather, and that of p the derivative of the polynomials.
"""

from collections.abc import Sequence

import numpy as np
from onnx_ir import DataType, Node, Value

from ortpipe.autodiff.open_shapes import ranked
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import Rewrite

A = -0.75  # of Keys' cubic convolution
# mode → the first neighbour k, and the coefficients of 1, r, r² … (rows) in each weight (columns)
POLYNOMIALS: dict[str, tuple[int, list[list[float]]]] = {
    "nearest": (0, [[1]]),
    "linear": (0, [[1, 0], [-1, 1]]),
    "cubic": (-1, [[0, 1, 0, 0], [A, 0, -A, 0], [-2 * A, -A - 3, 2 * A + 3, A], [A, A + 2, -A - 2, -A]]),
}


def grid_sample(op: Builder, node: Node) -> Sequence[Value]:
    """GridSample: the image at a grid's positions, with corners at −1 and 1; padding_mode decides values outside."""
    x, grid = node.inputs
    assert x is not None and grid is not None
    n, corners = ranked(x).rank() - 2, bool(node.attributes.get_int("align_corners", 0))
    mode = node.attributes.get_string("mode", "linear").removeprefix("bi")
    padding, grid = node.attributes.get_string("padding_mode", "zeros"), op.cast(grid, x)
    shape, out = op.Shape(x), op.Shape(grid)
    places, sizes = [], []
    for i in range(n):
        size = op.Gather(shape, op.const(np.int64(2 + i)), axis=0)
        extent = op.cast(size, x)
        p = op.Gather(grid, op.const(np.int64(n - 1 - i)), axis=-1) + 1
        p = p * ((extent - 1) / 2) if corners else (p * extent - 1) / 2
        p = op.Round(p) if mode == "nearest" else p
        low, high = (op.like(0, x), extent - 1) if corners else (op.like(-0.5, x), extent - 0.5)
        if padding == "border":
            p = op.Where(op.Or(op.Less(p, low), op.Greater(p, high)), op.Min(op.Max(p, 0), extent - 1), p)
        elif padding == "reflection":
            p = _reflected(op, p, low, high)
        places.append(op.Flatten(p, axis=1))
        sizes.append(size)
    images = op.Unsqueeze(op.Range(0, op.Gather(shape, op.const(np.int64(0)), axis=0), 1), [1])
    y = _interpolated(op, x, images, places, sizes, mode, padding, corners=corners)
    return [op.Reshape(y, op.Concat(op.Slice(shape, [0], [2]), op.Slice(out, [1], [-1]), axis=0))]


def roi_align(op: Builder, node: Node) -> Sequence[Value] | None:
    """RoiAlign by average: each cell of a region is the mean of the image at a grid of positions inside it.

    RoiAlign by maximum is left unchanged, without a gradient: the ONNX text and runtimes disagree on its definition.
    """
    x, rois, images = node.inputs
    assert x is not None and rois is not None and images is not None
    if node.attributes.get_string("mode", "avg") != "avg":
        return None
    cells = [node.attributes.get_int(name, 1) for name in ("output_height", "output_width")]
    ratio = node.attributes.get_int("sampling_ratio", 0)
    half = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    corners = op.cast(rois, x) * node.attributes.get_float("spatial_scale", 1.0) - (0.5 if half else 0.0)
    shape, places, means, sizes, counts = op.Shape(x), [], [], [], []
    for i, cell in enumerate(cells):
        size = op.Gather(shape, op.const(np.int64(2 + i)), axis=0)
        start, end = (op.Gather(corners, [at], axis=1) for at in (1 - i, 3 - i))  # [R, 1]
        length = end - start if half else op.Max(end - start, 1)
        count = op.like(ratio, x) if ratio else op.Max(op.Ceil(length / cell), 1)  # places in a cell, [R, 1]
        most = op.Cast(op.ReduceMax(count, keepdims=0), to=DataType.INT64)
        steps = op.Unsqueeze(op.cast(op.Range(0, most, 1), x), [0])  # [1, S]
        inside = op.Unsqueeze((steps + 0.5) / count, [1])  # [R, 1, S], of cell 0
        cell_numbers = op.const(np.arange(cell, dtype=x.dtype.numpy()).reshape(1, cell, 1))  # type: ignore[union-attr]
        p = op.Unsqueeze(start, [2]) + (cell_numbers + inside) * op.Unsqueeze(length / cell, [2])  # [R, cell, S]
        last = op.cast(size, x)
        seen = op.And(op.GreaterOrEqual(p, -1), op.LessOrEqual(p, last))
        seen = op.And(seen, op.Less(op.Unsqueeze(steps, [1]), op.Unsqueeze(op.Expand(count, [1, 1]), [2])))
        means.append(op.cast(seen, x) / op.Unsqueeze(op.Expand(count, [1, 1]), [2]))
        places.append(op.Min(op.Max(p, 0), last - 1))
        sizes.append(size)
        counts.append(op.Reshape(most, [1]))
    rows = op.Shape(rois, start=0, end=1)
    grid_shape = op.Concat(rows, [cells[0]], counts[0], [cells[1]], counts[1], axis=0)  # [R, h, S, w, T]
    spread = [
        op.Flatten(op.Expand(op.Unsqueeze(p, a), grid_shape), axis=1)
        for p, a in zip(places, ([3, 4], [1, 2]), strict=True)
    ]
    y = _interpolated(op, x, op.Unsqueeze(images, [1]), spread, sizes, "linear", "border", corners=True)  # [R, C, …]
    y = op.Reshape(y, op.Concat(rows, op.Shape(x, start=1, end=2), op.Slice(grid_shape, [1], [5]), axis=0))
    mean = op.Unsqueeze(means[0], [3, 4]) * op.Unsqueeze(means[1], [1, 2])
    return [op.ReduceSum(y * op.Unsqueeze(mean, [1]), [3, 5], keepdims=0)]


def _interpolated(
    op: Builder,
    x: Value,
    images: Value,
    places: Sequence[Value],
    sizes: Sequence[Value],
    mode: str,
    padding: str,
    *,
    corners: bool,
) -> Value:
    """Return images [N, C, …] at positions, one [M, P] per axis, of the images with numbers [M, 1]: [M, C, P]."""
    rank = ranked(x).rank()
    first, matrix = POLYNOMIALS[mode]
    degree, count = len(matrix) - 1, len(matrix[0])
    assert x.dtype is not None
    coefficients = op.const(np.array(matrix, x.dtype.numpy()))
    offsets = op.const(np.arange(first, first + count).astype(x.dtype.numpy()))
    flat: Value = op.Unsqueeze(op.Cast(images, to=DataType.INT64), [2])  # [M, 1, 1]
    weights: Value | None = None
    for p, size in zip(places, sizes, strict=True):
        place = op.Unsqueeze(p, [2])
        below, last = op.Floor(place), op.cast(size, x) - 1
        ratio, near = place - below, below + offsets  # [M, P, 1], [M, P, K]
        powers = [op.Expand(op.like(1, x), op.Shape(ratio)), ratio, ratio * ratio, ratio * ratio * ratio][: degree + 1]
        axis_weights = op.MatMul(op.Concat(*powers, axis=2), coefficients)
        if padding == "zeros":
            axis_weights = axis_weights * op.cast(op.And(op.GreaterOrEqual(near, 0), op.LessOrEqual(near, last)), x)
        elif padding == "reflection":
            low, high = (op.like(0, x), last) if corners else (op.like(-0.5, x), last + 0.5)
            near = _reflected(op, near, low, high)
        near = op.Cast(op.Min(op.Max(near, 0), last), to=DataType.INT64)
        # all pairs of the neighbours so far and those along this axis
        flat = op.Reshape(op.Unsqueeze(flat * size, [3]) + op.Unsqueeze(near, [2]), [0, 0, -1])
        weights = (
            axis_weights
            if weights is None
            else op.Reshape(op.Unsqueeze(weights, [3]) * op.Unsqueeze(axis_weights, [2]), [0, 0, -1])
        )
    last_axis = op.Transpose(x, perm=[0, *range(2, rank), 1])
    rows = op.Reshape(last_axis, op.Concat([-1], op.Shape(x, start=1, end=2), axis=0))
    assert weights is not None
    y = op.MatMul(op.Unsqueeze(weights, [2]), op.Gather(rows, flat, axis=0))  # [M, P, 1, K] · [M, P, K, C]
    return op.Transpose(op.Squeeze(y, [2]), perm=[0, 2, 1])


def _reflected(op: Builder, p: Value, low: Value, high: Value) -> Value:
    """Return p reflected at both borders, as often as needed."""
    width = high - low
    past = p - low
    whole_periods = op.Floor(past / op.Max(width * 2, 1)) * (width * 2)
    return low + (width - op.Abs(past - whole_periods - width))


EXPANSIONS: dict[str, Rewrite] = {"GridSample": grid_sample, "RoiAlign": roi_align}
