"""Operators that read or write by index. What was read from a place sends its gradient back to the same place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients, ranked
from ortpipe.stages.derive.rules.activations import integer


def gather(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = x[…, indices, …]: dx[…, i, …] = Σ dy over the entries that read i."""
    x, indices = node.inputs
    assert x is not None and indices is not None
    rank = ranked(x).rank()
    axis = integer(node, "axis", 0) % rank
    dy = op.full(dy, node.outputs[0])
    if op.opset < 16:
        return [_by_one_hot(op, x, indices, dy, axis), None]
    return [_along(op, x, indices, dy, axis, add=True), None]


def _along(op: Backward, x: ir.Value, indices: ir.Value, dy: ir.Value, axis: int, *, add: bool = False) -> ir.Value:
    """Scatter dy along one axis of zeros of x's shape."""
    rank = ranked(x).rank()
    if indices.shape is None or indices.shape.rank() != 1:
        dy = op.Reshape(dy, _shape_with(op, x, axis, -1))
    line = op.Reshape(indices, op.ints([-1 if i == axis else 1 for i in range(rank)]))
    places, zeros = op.Expand(line, op.Shape(dy)), op.zeros(x)
    made = op.scatter_add(zeros, places, dy, axis) if add else op.ScatterElements(zeros, places, dy, axis=axis)
    return _as(made, x)


def _by_one_hot(op: Backward, x: ir.Value, indices: ir.Value, dy: ir.Value, axis: int) -> ir.Value:
    """Sum rows of dy by a matrix product, [places = read]ᵀ · dy: below opset 16 nothing can scatter a sum."""
    rank = ranked(x).rank()
    order = [axis, *(i for i in range(rank) if i != axis)]
    rows = op.Reshape(op.Transpose(op.Reshape(dy, _shape_with(op, x, axis, -1)), perm=order), op.ints([0, -1]))
    size = op.Reshape(op.dim(x, axis), op.ints([1]))
    hot = op.Transpose(_one_hot(op, op.Reshape(indices, op.ints([-1])), size, x), perm=[1, 0])
    turned = op.Concat(size, *(op.Reshape(op.dim(x, i), op.ints([1])) for i in order[1:]), axis=0)
    summed = op.Reshape(op.MatMul(hot, rows), turned)
    return _as(op.Transpose(summed, perm=np.argsort(order).tolist()), x)


def _one_hot(op: Backward, indices: ir.Value, size: ir.Value, like: ir.Value) -> ir.Value:
    """Return the matrix [index = place], rows indices and columns places, as 0 and 1."""
    wide = op.Cast(indices, to=ir.DataType.INT64)
    zero = op.const(np.int64(0))
    wide = op.Where(op.Less(wide, zero), op.Add(wide, size), wide)
    line = op.Range(zero, op.Reshape(size, op.const(np.zeros(0, np.int64))), op.const(np.int64(1)))
    return op.cast(op.Equal(op.Unsqueeze(wide, op.ints([1])), op.Unsqueeze(line, op.ints([0]))), like)


def gather_elements(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """GatherElements: dx = dy, added at the places that were read."""
    x, indices = node.inputs
    assert x is not None and indices is not None
    dy = op.full(dy, node.outputs[0])
    axis = integer(node, "axis", 0)
    if op.opset < 16:
        return [put_back(op, x, dy, lambda numbers: op.GatherElements(numbers, indices, axis=axis)), None]
    return [_as(op.scatter_add(op.zeros(x), indices, dy, axis), x), None]


def gather_nd(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """GatherND: dx = dy, added at the places that were read.

    Not by ScatterND: onnxruntime 1.19's threads race in it where an index comes twice.
    """
    x, indices = node.inputs
    assert x is not None
    dy = op.full(dy, node.outputs[0])
    batch = integer(node, "batch_dims", 0)
    given = {"batch_dims": batch} if batch else {}
    return [put_back(op, x, dy, lambda numbers: op.GatherND(numbers, indices, **given)), None]


def put_back(op: Backward, x: ir.Value, dy: ir.Value, read: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Return dx of any operator that only reads: number the places of x, read the numbers alike, add dy there."""
    count = op.Size(x)
    numbers = op.Reshape(op.Range(op.const(np.int64(0)), count, op.const(np.int64(1))), op.shape(x))
    places, values = op.Reshape(read(numbers), op.ints([-1])), op.Reshape(dy, op.ints([-1]))
    size = op.Reshape(count, op.ints([1]))
    if op.opset < 16:
        row = op.Unsqueeze(values, op.ints([0]))
        summed = op.MatMul(row, _one_hot(op, places, size, x))
    else:
        summed = op.scatter_add(op.Expand(op.like(0, x), size), places, values, 0)
    return _as(op.Reshape(summed, op.shape(x)), x)


Move = Callable[..., ir.Value]


def scatter_elements(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """ScatterElements: see `_scattered`."""
    indices, axis = node.inputs[1], integer(node, "axis", 0)

    def read(x: ir.Value) -> ir.Value:
        return op.GatherElements(x, indices, axis=axis)

    def write(x: ir.Value, updates: ir.Value, **reduction: str) -> ir.Value:
        return op.ScatterElements(x, indices, updates, axis=axis, **reduction)

    return _scattered(op, node, op.full(dy, node.outputs[0]), read, write)


def scatter_nd(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """ScatterND: see `_scattered`."""
    indices = node.inputs[1]

    def read(x: ir.Value) -> ir.Value:
        return op.GatherND(x, indices)

    def write(x: ir.Value, updates: ir.Value, **reduction: str) -> ir.Value:
        return op.ScatterND(x, indices, updates, **reduction)

    return _scattered(op, node, op.full(dy, node.outputs[0]), read, write)


def _scattered(op: Backward, node: ir.Node, dy: ir.Value, read: Move, write: Move) -> Gradients:
    """Gradients of x and u for y = x with u written at indices.

    none: x gets dy except where it was overwritten, u gets what was read at its place.
    add: x gets dy, u what was read. mul: dy · the product of the others. max, min: ties share evenly (PyTorch's
    `scatter_reduce`).
    """
    x, _, u = node.inputs
    y = node.outputs[0]
    assert x is not None and u is not None
    reduction = node.attributes["reduction"].as_string() if "reduction" in node.attributes else "none"
    if reduction == "none":
        return [_as(write(dy, op.zeros(u)), x), None, _as(read(dy), u)]
    if reduction == "add":
        return [dy, None, _as(read(dy), u)]
    if reduction == "mul":
        return _multiplied(op, x, u, dy, read, write)
    own, theirs = op.cast(op.Equal(x, y), x), op.cast(op.Equal(u, read(y)), x)
    share = op.Div(dy, write(own, theirs, reduction="add"))
    return [_as(op.Mul(share, own), x), None, _as(op.Mul(read(share), theirs), u)]


def _multiplied(op: Backward, x: ir.Value, u: ir.Value, dy: ir.Value, read: Move, write: Move) -> Gradients:
    """Π of the others = Π / own where nothing is 0; with a single 0 only that factor moves the product."""
    zero, one = op.like(0, x), op.like(1, x)
    zero_x, zero_u = op.Equal(x, zero), op.Equal(u, zero)
    filled_x, filled_u = op.Where(zero_x, one, x), op.Where(zero_u, one, u)
    product = write(filled_x, filled_u, reduction="mul")
    zeros = write(op.cast(zero_x, x), op.cast(zero_u, x), reduction="add")
    none = op.Mul(dy, op.Mul(product, op.cast(op.Equal(zeros, zero), x)))
    single = op.Mul(dy, op.Mul(product, op.cast(op.Equal(zeros, one), x)))
    dx = op.Where(zero_x, single, op.Div(none, filled_x))
    du = op.Where(zero_u, read(single), op.Div(read(none), filled_u))
    return [_as(dx, x), None, _as(du, u)]


def trilu(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Trilu: dx = the same triangle of dy."""
    y = node.outputs[0]
    dx = op.Trilu(op.full(dy, y), *node.inputs[1:], upper=integer(node, "upper", 1))
    return [_as(dx, node.inputs[0]), *[None] * (len(node.inputs) - 1)]


def cum_sum(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """CumSum: dx = dy, summed in the other direction."""
    x, axis = node.inputs
    turned = {"exclusive": integer(node, "exclusive", 0), "reverse": 1 - integer(node, "reverse", 0)}
    return [_as(op.CumSum(op.full(dy, node.outputs[0]), axis, **turned), x), None]


def top_k(op: Backward, node: ir.Node, dy: ir.Value, *_: ir.Value | None) -> Gradients:
    """TopK: dx = dy at the places of the values that were taken."""
    x, (values, places) = node.inputs[0], node.outputs
    assert x is not None
    axis = integer(node, "axis", -1)
    return [_as(op.ScatterElements(op.zeros(x), places, op.full(dy, values), axis=axis), x), None]


def compress(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """Compress: dx = dy at the places that were kept, 0 at the others."""
    x, condition = node.inputs
    assert x is not None
    dy = op.full(dy, node.outputs[0])
    flat = "axis" not in node.attributes
    axis = 0 if flat else integer(node, "axis", 0) % ranked(x).rank()
    size = op.Size(x) if flat else op.dim(x, axis)
    places = op.Compress(op.Range(op.const(np.int64(0)), size, op.const(np.int64(1))), condition, axis=0)
    places.type, places.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([None])
    if not flat:
        return [_along(op, x, places, dy, axis), None]
    zeros = op.Expand(op.like(0, x), op.Reshape(size, op.ints([1])))
    return [_as(op.Reshape(op.ScatterElements(zeros, places, dy, axis=0), op.shape(x)), x), None]


def one_hot(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """y = off + (on − off) · hot: d off = Σ dy · (1 − hot), d on = Σ dy · hot."""
    indices, depth, values = (op.Cast(v, to=ir.DataType.INT64) if i < 2 else v for i, v in enumerate(node.inputs))
    y = node.outputs[0]
    dy = op.full(dy, y)
    hot = op.cast(op.OneHot(indices, depth, op.ints([0, 1]), axis=integer(node, "axis", -1)), y)
    on, whole = (op.Reshape(op.ReduceSum(v, keepdims=0), op.ints([1])) for v in (op.Mul(dy, hot), dy))
    return [None, None, _as(op.Concat(op.Sub(whole, on), on, axis=0), values)]


def reverse_sequence(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """ReverseSequence is its own inverse: dx = dy, reversed alike."""
    x, lengths = node.inputs
    axes = {"batch_axis": integer(node, "batch_axis", 1), "time_axis": integer(node, "time_axis", 0)}
    return [_as(op.ReverseSequence(op.full(dy, node.outputs[0]), lengths, **axes), x), None]


def dropout(op: Backward, node: ir.Node, dy: ir.Value, *_: ir.Value | None) -> Gradients:
    """Dropout: dx = dy · mask / (1 − ratio) with the mask that the forward drew; dx = dy outside training."""
    ratio, training = (*node.inputs, None, None)[1:3]
    rest = [None] * (len(node.inputs) - 1)
    fixed = op.constant(training)
    if training is None or (fixed is not None and not fixed.numpy().any()):
        return [dy, *rest]
    y, mask = _with_mask(op, node)
    one = op.like(1, y)
    kept = op.Sub(one, op.cast(ratio, y)) if ratio is not None else op.like(0.5, y)
    if fixed is None:
        kept = op.Where(training, kept, one)
    return [op.Mul(dy, op.Div(op.cast(mask, y), kept)), *rest]


def _with_mask(op: Backward, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return value and mask of a Dropout; a second node would draw a second mask."""
    y = node.outputs[0]
    if len(node.outputs) < 2:
        node.resize_outputs(2)
    mask = node.outputs[1]
    if not mask.name:
        op.rename(mask, f"{y.name}/mask")
    mask.type, mask.shape = ir.TensorType(ir.DataType.BOOL), y.shape
    return y, mask


def _shape_with(op: Backward, x: ir.Value, axis: int, size: int) -> ir.Value:
    """Return x's shape as a tensor with another size along one axis."""
    dims = [size if i == axis else d for i, d in enumerate(ranked(x))]
    if all(isinstance(d, int) for d in dims):
        return op.ints([int(d) for d in dims])  # type: ignore[arg-type]
    parts = [op.ints([size]) if i == axis else op.Reshape(op.dim(x, i), op.ints([1])) for i in range(len(dims))]
    return op.Concat(*parts, axis=0)


def _as(gradient: ir.Value, x: ir.Value | None) -> ir.Value:
    if x is not None:
        gradient.type, gradient.shape = x.type, x.shape
    return gradient


RULES: dict[str, Callable[..., Gradients]] = {
    "Compress": compress,
    "CumSum": cum_sum,
    "Dropout": dropout,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
    "Trilu": trilu,
}
