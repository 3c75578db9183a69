"""Operators that move values without changing them."""

from typing import Any

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.autodiff.rules.indexing import put_back

FLIP = [[-1], [np.iinfo(np.int64).min], [-1]]  # starts, ends and steps that reverse one whole axis


def back_to_shape(op: Backward, node: Node, dy: Value, x: Value, *_: Value) -> Gradients:
    """Reshape, Squeeze, Unsqueeze, Flatten: dx = dy in x's shape."""
    return [op.reshape_like(dy, x)]


def transpose(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """dx = dy, transposed by the inverse permutation."""
    perm = node.attributes.get_ints("perm", None)
    return [op.Transpose(dy) if perm is None else op.Transpose(dy, perm=np.argsort(perm).tolist())]


def tile(op: Backward, node: Node, dy: Value, x: Value, repeats: Value) -> Gradients:
    """dx = dy, reshaped into its copies [r₀, d₀, r₁, d₁ …] and summed over them."""
    pairs = op.vector(op.Transpose(op.Reshape(op.Concat(repeats, op.shape(x), axis=0), [2, -1])))
    return [op.ReduceSum(op.Reshape(dy, pairs, allowzero=1), range(0, 2 * ranked(x).rank(), 2), keepdims=0)]


def concat(op: Backward, node: Node, dy: Value, *inputs: Value) -> Gradients:
    """Each input gets its slice of dy."""
    axis = node.attributes.get_int("axis", 0)
    if len(inputs) == 1:
        return [dy]
    sizes: Any = [x.shape[axis] if x.shape is not None else None for x in inputs]
    if not all(isinstance(size, int) for size in sizes):
        sizes = op.Concat(*(op.Gather(op.Shape(x), [axis]) for x in inputs), axis=0)
    return op.Split(dy, sizes, axis=axis, outputs=len(inputs))


def split(op: Backward, node: Node, dys: Gradients, x: Value, *_: Value) -> Gradients:
    """dx = the outputs' gradients concatenated, with zeros for missing ones."""
    parts = [dy if dy is not None else op.zeros(y) for dy, y in zip(dys, node.outputs, strict=True)]
    return [op.Concat(*parts, axis=node.attributes.get_int("axis", 0))]


def slice_(op: Backward, node: Node, dy: Value, x: Value, *places: Value | None) -> Gradients:
    """dx is dy scattered to the entries that were read, and 0 elsewhere."""
    constants = [op.constant(v) for v in (*places, None, None)[:4]]
    starts, ends, axes, steps = (t.numpy().ravel().tolist() if t is not None else None for t in constants)
    if [starts, ends, steps] == FLIP:
        return [op.Slice(dy, *places)]
    named = len(places) < 3 or places[2] is None or axes is not None
    if starts is not None and ends is not None and named and (len(places) < 4 or steps == [1] * len(starts)):
        shape = ranked(x)
        low, high = [0] * shape.rank(), [0] * shape.rank()
        for axis, start, end in zip(axes or range(len(starts)), starts, ends, strict=True):
            size = shape[axis]
            if not isinstance(size, int):
                break
            begin, stop, _ = slice(start, end).indices(size)
            low[axis], high[axis] = begin, size - max(begin, stop)
        else:
            return [op.Pad(dy, [*low, *high])]
    if starts is not None and not any(starts) and axes is not None and steps in (None, [1] * len(axes)):
        lacking = op.Shape(x) - op.Shape(dy)  # all missing rows are after dy
        return [op.Pad(dy, op.Concat(lacking * 0, lacking, axis=0))]
    return [put_back(op, x, dy, lambda numbers: op.Slice(numbers, *places), add=False)]  # any steps, any sizes


def pad(
    op: Backward, node: Node, dy: Value, x: Value, pads: Value, value: Value | None = None, axes: Value | None = None
) -> Gradients:
    """dx = the inner part of dy; for edge, reflect and wrap, padding gradients are added where it was read."""
    mode, extra = node.attributes.get_string("mode", "constant"), [None, axes] if axes is not None else []
    if mode != "constant":
        return [put_back(op, x, dy, lambda numbers: op.Pad(numbers, pads, *extra, mode=mode))]
    added, cut = op.Max(pads, [0]), op.Max(-pads, [0])
    half = op.Reshape(added, [2, -1])
    low, high = (op.Gather(half, op.const(np.int64(i)), axis=0) for i in (0, 1))
    sizes = op.Shape(dy) if axes is None else op.Gather(op.Shape(dy), axes)
    dx = op.Slice(dy, low, sizes - high, *extra[1:])
    dx = op.Pad(dx, cut, *extra)  # where a pad is negative, x was cropped: restore zeros
    if value is None or value not in op.active:
        return [dx]
    outside = op.ReduceSum(dy, keepdims=0) - op.ReduceSum(dx, keepdims=0)  # the part that did not go to x
    return [dx, None, op.reshape_like(outside, value)]


def depth_to_space(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """DepthToSpace: dx = dy with its blocks moved back into channels, in the order of the mode."""
    block = node.attributes["blocksize"].as_int()
    dx = op.SpaceToDepth(dy, blocksize=block)
    if node.attributes.get_string("mode", "DCR") == "DCR":
        return [dx]
    depth, count = ranked(x)[1], block * block
    # CRD puts channel c·b² + i·b + j at offset (i, j); SpaceToDepth gives i, j, c, so transpose the axes
    if isinstance(depth, int):
        turned = op.Reshape(dx, [0, count, depth // count, -1])
    else:
        groups = op.Reshape(op.Div(op.dim(x, 1), op.const(np.int64(count))), [1])
        turned = op.Reshape(dx, op.Concat([0, count], groups, [-1], axis=0))
    return [op.Reshape(op.Transpose(turned, perm=[0, 2, 1, 3]), op.shape(x))]


def space_to_depth(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """SpaceToDepth: dx = dy with its channels moved into blocks."""
    return [op.DepthToSpace(dy, blocksize=node.attributes["blocksize"].as_int())]


RULES: Rules = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": lambda op, node, dy, x, shape: [dy],  # the walk sums over broadcast axes
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
