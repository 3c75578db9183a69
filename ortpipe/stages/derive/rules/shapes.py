"""Operators that move values without changing them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients, ranked
from ortpipe.stages.derive.rules.activations import integer
from ortpipe.stages.derive.rules.indexing import put_back


def back_to_shape(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Reshape, Squeeze, Unsqueeze, Flatten: dx = dy in x's shape."""
    x = node.inputs[0]
    assert x is not None
    return [op.reshape_like(op.full(dy, node.outputs[0]), x), *[None] * (len(node.inputs) - 1)]


def transpose(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """dx = dy, transposed by the inverse permutation."""
    dy = op.full(dy, node.outputs[0])
    if "perm" not in node.attributes:
        return [op.Transpose(dy)]
    return [op.Transpose(dy, perm=np.argsort(node.attributes["perm"].as_ints()).tolist())]


def expand(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """dx = dy, summed over the axes that were broadcast."""
    return [dy, None]


def tile(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """dx = dy, cut into the copies [r₀, d₀, r₁, d₁ …] and summed over them."""
    x, repeats = node.inputs
    assert x is not None
    rank = ranked(x).rank()
    pairs = op.Reshape(
        op.Transpose(op.Reshape(op.Concat(repeats, op.shape(x), axis=0), op.ints([2, rank]))), op.ints([-1])
    )
    cut = op.Reshape(op.full(dy, node.outputs[0]), pairs)
    return [_as(op.ReduceSum(cut, op.ints(list(range(0, 2 * rank, 2))), keepdims=0), x), None]


def concat(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Each input gets its slice of dy."""
    y = node.outputs[0]
    axis = integer(node, "axis", 0)
    dy = op.full(dy, y)
    if len(node.inputs) == 1:
        return [dy]
    sizes = [x.shape[axis] if x is not None and x.shape is not None else None for x in node.inputs]
    if all(isinstance(s, int) for s in sizes):
        split: ir.Value = op.ints([int(s) for s in sizes])  # type: ignore[arg-type]
    else:
        split = op.Concat(*(op.Gather(op.Shape(x), op.ints([axis])) for x in node.inputs), axis=0)
    parts = op.Split(dy, split, axis=axis, outputs=len(node.inputs))
    return [_as(part, x) for part, x in zip(parts, node.inputs, strict=True)]


def split(op: Backward, node: ir.Node, *dys: ir.Value | None) -> Gradients:
    """dx = the outputs' gradients side by side, zeros where nothing arrived."""
    parts = [op.full(dy, y) if dy is not None else op.zeros(y) for dy, y in zip(dys, node.outputs, strict=True)]
    dx = op.Concat(*parts, axis=integer(node, "axis", 0))
    return [dx, *[None] * (len(node.inputs) - 1)]


FLIP = [[-1], [np.iinfo(np.int64).min], [-1]]  # starts, ends and steps of one whole axis backwards


def slice_(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """dx is 0 but for the places that were read: dy scattered to them."""
    x = node.inputs[0]
    assert x is not None
    dy = op.full(dy, node.outputs[0])
    starts, ends, axes, steps = (*node.inputs[1:], None, None, None, None)[:4]
    rank = ranked(x).rank()
    constant = [op.constant(v) for v in (starts, ends, axes, steps)]
    if [t.numpy().ravel().tolist() if t is not None else None for t in (constant[0], constant[1], constant[3])] == FLIP:
        return [_as(op.Slice(dy, *node.inputs[1:]), x), *[None] * (len(node.inputs) - 1)]
    known_axes = _ints(constant[2], list(range(len(_ints(constant[0], []))))) if constant[0] is not None else None
    if (
        known_axes is not None
        and (axes is None or constant[2] is not None)
        and (steps is None or constant[3] is not None)
    ):
        listed = [a % rank for a in known_axes]
        step = _ints(constant[3], [1] * len(listed))
        sizes = [ranked(x)[a] for a in listed]
        if constant[1] is not None and all(isinstance(s, int) for s in sizes) and all(s == 1 for s in step):
            low = [0] * rank
            high = [0] * rank
            for a, b, e, size in zip(listed, _ints(constant[0], []), _ints(constant[1], []), sizes, strict=True):
                assert isinstance(size, int)
                begin, end, _ = slice(b, e).indices(size)
                low[a], high[a] = begin, size - max(begin, end)
            return [_as(op.Pad(dy, op.ints([*low, *high])), x), *[None] * (len(node.inputs) - 1)]
    # any steps, any sizes: number the places of x, slice the numbers alike, scatter dy there
    count = op.Size(x)
    numbers = op.Reshape(op.Range(op.const(np.int64(0)), count, op.const(np.int64(1))), op.Shape(x))
    places = op.Reshape(op.Slice(numbers, *node.inputs[1:]), op.ints([-1]))
    zeros = op.Expand(op.like(0, x), op.Reshape(count, op.ints([1])))
    filled = op.ScatterElements(zeros, places, op.Reshape(dy, op.ints([-1])), axis=0)
    return [_as(op.Reshape(filled, op.shape(x)), x), *[None] * (len(node.inputs) - 1)]


def _ints(tensor: ir.TensorProtocol | None, default: list[int]) -> list[int]:
    return [int(v) for v in tensor.numpy().ravel()] if tensor is not None else default


def pad(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """dx = the inner part of dy; for edge, reflect and wrap, the padding's gradients return to where it was read."""
    x, pads = node.inputs[0], node.inputs[1]
    value, axes = (*node.inputs[2:], None, None)[:2]
    assert x is not None and pads is not None
    dy = op.full(dy, node.outputs[0])
    mode = node.attributes["mode"].as_string() if "mode" in node.attributes else "constant"
    extra = [None, axes] if axes is not None else []
    rest: list[ir.Value | None] = [None] * (len(node.inputs) - 1)
    if mode != "constant":
        return [put_back(op, x, dy, lambda numbers: op.Pad(numbers, pads, *extra, mode=mode)), *rest]
    added, cut = op.Max(pads, op.ints([0])), op.Max(op.Neg(pads), op.ints([0]))
    half = op.Reshape(added, op.ints([2, -1]))
    low, high = (op.Gather(half, op.const(np.int64(i)), axis=0) for i in (0, 1))
    sizes = op.Shape(dy) if axes is None else op.Gather(op.Shape(dy), axes)
    dx = op.Slice(dy, low, op.Sub(sizes, high), *extra[1:])
    dx = op.Pad(dx, cut, *extra)  # where a pad is negative, x was cut: zeros come back
    dx.type, dx.shape = x.type, x.shape
    if value is not None:
        # the padding value's gradient is everything that did not go to x
        whole = op.ReduceSum(dy, keepdims=0)
        inner = op.ReduceSum(dx, keepdims=0)
        rest[1] = op.reshape_like(op.Sub(whole, inner), value)
    return [dx, *rest]


def depth_to_space(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """DepthToSpace: dx = dy with its blocks put back into channels, in the order of the mode."""
    x, y = node.inputs[0], node.outputs[0]
    block = integer(node, "blocksize", 1)
    dy = op.full(dy, y)
    mode = node.attributes["mode"].as_string() if "mode" in node.attributes else "DCR"
    if mode == "DCR":
        return [_as(op.SpaceToDepth(dy, blocksize=block), x)]
    assert x is not None
    depth = ranked(x)[1]
    assert isinstance(depth, int)
    # CRD puts channel c·b² + i·b + j at offset (i, j): SpaceToDepth gives i, j, c and the axes are turned
    turned = op.Reshape(op.SpaceToDepth(dy, blocksize=block), op.ints([0, block * block, depth // block**2, -1]))
    return [_as(op.Reshape(op.Transpose(turned, perm=[0, 2, 1, 3]), op.shape(x)), x)]


def space_to_depth(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """SpaceToDepth: dx = dy with its channels spread over blocks."""
    dy = op.full(dy, node.outputs[0])
    return [_as(op.DepthToSpace(dy, blocksize=integer(node, "blocksize", 1)), node.inputs[0])]


def _as(gradient: ir.Value, x: ir.Value | None) -> ir.Value:
    if x is not None:
        gradient.type, gradient.shape = x.type, x.shape
    return gradient


RULES: dict[str, Callable[..., Gradients]] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": back_to_shape,
    "Pad": pad,
    "Reshape": back_to_shape,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": back_to_shape,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": back_to_shape,
}
