"""Resize is separable and linear, so its gradient is a product with one small matrix per resized axis."""

import math
from collections.abc import Sequence
from typing import Any

from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.autodiff.rules.pooling import along, eye
from ortpipe.autodiff.windows import FAR
from ortpipe.errors import DeriveError
from ortpipe.graph.core.query import called
from ortpipe.graph.core.types import equal

TRANSFORMATION, ROUNDING = "coordinate_transformation_mode", "nearest_mode"
COPIES = {  # (transformation, rounding) that copy each pixel n times if the scale is a whole number n
    ("asymmetric", "floor"),
    *((mode, f"round_prefer_{way}") for mode in ("half_pixel", "pytorch_half_pixel") for way in ("floor", "ceil")),
}


def resize(op: Backward, node: Node, dy: Value, x: Value, *_: Value | None) -> Gradients:
    """y = (M₁ ⊗ M₂ ⊗ …)·x, one interpolation matrix per axis: dx = (M₁ᵀ ⊗ M₂ᵀ ⊗ …)·dy.

    Each matrix is the operator applied to the identity matrix along this axis (a constant, for known sizes and scales),
    so all modes and coordinate transformations are those of the forward. Extrapolated values have no gradient.
    """
    places, rank = _resized(op, node, x), ranked(x).rank()
    blocks = _blocks(op, node, x, places)
    if blocks and 3 <= rank <= 5 and min(blocks) >= 2:
        # every pixel of x is copied to a block of y: a pool sums the block, several times faster than matrices
        window = [blocks.get(i, 1) for i in range(2, rank)]
        averages = op.AveragePool(dy, kernel_shape=window, strides=window)
        averages.shape = x.shape
        return [averages * math.prod(window)]
    kept_ratio = node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch"
    of_unit_matrix = _of_same_ratio if kept_ratio else _of_unit_matrix
    for place in places:
        dy = along(op, dy, _named_axes(node, x)[place], of_unit_matrix(op, node, x, place))
    dy.shape = x.shape
    return [dy]


def _of_unit_matrix(op: Backward, node: Node, x: Value, place: int) -> Value:
    """Return the matrix (size × count) of a named axis by resizing an identity matrix [1, 1, size, size]."""
    named, (_, roi, scales, sizes) = _named_axes(node, x), (*node.inputs, None, None, None)[:4]

    def with_third(value: Value, before: list[int], index: int, after: int) -> tuple[Value, ...]:
        return op.Cast(before, to=value.dtype), op.Gather(value, [index]), op.Cast([after], to=value.dtype)

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
        size = op.Concat([1, 1], op.Gather(sizes, [place]), op.Reshape(op.dim(x, named[place]), [1]), axis=0)
    omitted = ("axes", "extrapolation_value", "keep_aspect_ratio_policy")
    attributes: dict[str, Any] = {name: value for name, value in node.attributes.items() if name not in omitted}
    inputs = [op.Unsqueeze(eye(op, x, named[place]), [0, 1]), corners, factor, size]
    resized = op.Squeeze(op.Resize(*inputs[: 3 if size is None else 4], **attributes), [0, 1])
    return op.Transpose(resized)


def _of_same_ratio(op: Backward, node: Node, x: Value, place: int) -> Value:
    """Return the same matrix where all named axes are resized in one ratio, from rows of the matrix as images of x."""
    named, rank = _named_axes(node, x), ranked(x).rank()
    axis, others = named[place], [i for i in range(1, rank) if i != named[place]]
    if 0 in named:
        raise DeriveError(
            "keep_aspect_ratio_policy has a gradient only if the batch is not resized.",
            got=f"{called(node)}, with axes {named}",
            fix="Name the resized axes in its attribute axes.",
        )
    rows = op.Unsqueeze(eye(op, x, axis), others)
    images = op.Expand(rows, op.Concat([1], op.Slice(op.Shape(x), [1], [FAR]), axis=0))
    resized = op.Resize(images, *node.inputs[1:], **node.attributes)
    return op.Squeeze(op.Slice(resized, [0] * len(others), [1] * len(others), others), others)


def _named_axes(node: Node, x: Value) -> list[int]:
    rank = ranked(x).rank()
    return [a % rank for a in node.attributes.get_ints("axes", range(rank))]


def _crops(node: Node) -> bool:
    return node.attributes.get_string(TRANSFORMATION, "half_pixel") == "tf_crop_and_resize"


def _is_present(scales: Value | None) -> bool:
    return scales is not None and (scales.shape is None or list(scales.shape) != [0])  # empty means absent


def _resized(op: Backward, node: Node, x: Value) -> list[int]:
    """Return the named axes, by their places in the list, that a new size or a crop may change."""
    (_, roi, scales, sizes), y = (*node.inputs, None, None, None)[:4], node.outputs[0].shape
    named, count = _named_axes(node, x), len(_named_axes(node, x))
    if node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return list(range(count))
    corners = _numbers(op, roi) if _crops(node) else [0.0] * count + [1.0] * count
    factors, counts = _numbers(op, scales) if _is_present(scales) else None, _numbers(op, sizes)
    places = []
    for place, axis in enumerate(named):
        size = ranked(x)[axis]
        if _is_present(scales):
            unchanged = factors is not None and factors[place] == 1
        elif counts is not None:
            unchanged = counts[place] == size
        else:  # the batch is unchanged, even if its new size has another name
            unchanged = axis == 0 or (y is not None and equal(size, y[axis]))
        if not unchanged or corners is None or (corners[place], corners[place + count]) != (0.0, 1.0):
            places.append(place)
    return places


def _blocks(op: Backward, node: Node, x: Value, places: Sequence[int]) -> dict[int, int]:
    """Return n for each resized axis if every entry is only copied to n adjacent ones, else nothing."""
    y, scales = node.outputs[0].shape, node.inputs[2] if len(node.inputs) > 2 else None
    text = node.attributes.get_string
    kind = (text(TRANSFORMATION, "half_pixel"), text(ROUNDING, "round_prefer_floor"))
    if text("mode", "nearest") != "nearest" or kind not in COPIES or y is None:
        return {}
    factors, blocks = _numbers(op, scales) if _is_present(scales) else None, dict[int, int]()
    for place in places:
        axis = _named_axes(node, x)[place]
        size, count = ranked(x)[axis], y[axis]
        if not isinstance(size, int) or not isinstance(count, int) or not size or count % size:
            return {}
        if factors is not None and factors[place] * size != count:
            return {}
        blocks[axis] = count // size
    return blocks


def _numbers(op: Backward, value: Value | None) -> list[float] | None:
    tensor = op.constant(value)
    return [float(v) for v in tensor.numpy().ravel()] if tensor is not None else None


RULES: Rules = {"Resize": resize}
