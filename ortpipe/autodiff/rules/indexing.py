"""Operators that read or write by index: the gradient of a value that was read is added where it was read."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.graph.core.query import HALVES


def scattered(op: Backward, zeros: Value, places: Value, values: Value, axis: int, *, add: bool = True) -> Value:
    """Return zeros with values written or added along an axis; float16 is added in float32, which has a kernel."""
    if not add:
        return op.ScatterElements(zeros, places, values, axis=axis)
    if zeros.dtype not in HALVES:
        return op.ScatterElements(zeros, places, values, axis=axis, reduction="add")
    zeros_32, values_32 = (op.Cast(v, to=ir.DataType.FLOAT) for v in (zeros, values))
    return op.cast(op.ScatterElements(zeros_32, places, values_32, axis=axis, reduction="add"), zeros)


def put(op: Backward, x: Value, places: Value, values: Value, *, add: bool = False) -> Value:
    """Return zeros of x's shape with values at row-major positions."""
    zeros = op.Expand(op.like(0, x), op.Reshape(op.Size(x), [1]))
    return op.Reshape(scattered(op, zeros, op.vector(places), op.vector(values), 0, add=add), op.shape(x))


def gather(op: Backward, node: Node, dy: Value, x: Value, indices: Value) -> Gradients:
    """y = x[…, indices, …]: dx[…, i, …] = Σ dy over the entries that read i."""
    axis = op.axis(node, x, 0)
    return [along_axis(op, x, indices, dy, axis)]


def along_axis(op: Backward, x: Value, indices: Value, dy: Value, axis: int, *, add: bool = True) -> Value:
    """Scatter dy along one axis into zeros of x's shape."""
    if indices.shape is None or indices.shape.rank() != 1:
        dy = op.Reshape(dy, _shape_with(op, x, axis, indices))
    line = op.Reshape(indices, [-1 if i == axis else 1 for i in range(ranked(x).rank())])
    return scattered(op, op.zeros(x), op.Expand(line, op.Shape(dy)), dy, axis, add=add)


def gather_elements(op: Backward, node: Node, dy: Value, x: Value, indices: Value) -> Gradients:
    """GatherElements: dx = dy, added at the positions that were read."""
    axis = node.attributes.get_int("axis", 0)
    return [scattered(op, op.zeros(x), indices, dy, axis)]


def gather_nd(op: Backward, node: Node, dy: Value, x: Value, indices: Value) -> Gradients:
    """GatherND: dx = dy, added at the positions that were read.

    Not by ScatterND: its threads race in onnxruntime 1.19 if an index occurs twice.
    """
    batch = node.attributes.get_int("batch_dims", 0)
    attributes = {"batch_dims": batch} if batch else {}
    return [put_back(op, x, dy, lambda numbers: op.GatherND(numbers, indices, **attributes))]


def put_back(op: Backward, x: Value, dy: Value, read: Callable[[Value], Value], *, add: bool = True) -> Value:
    """Return dx of any operator that only reads: number x's entries, apply the operator to the numbers, scatter dy.

    Set `add` if an entry may be read twice.
    """
    places = op.vector(read(op.Reshape(op.Range(0, op.Size(x), 1), op.shape(x))))
    return put(op, x, places, dy, add=add)


def scatter(op: Backward, node: Node, dy: Value, x: Value, indices: Value, u: Value) -> Gradients:
    """ScatterElements, ScatterND y = x with u written at indices.

    none: x gets dy except where it was overwritten, u gets dy at its indices.
    add: x gets dy, u gets dy at its indices. max, min: ties share evenly (PyTorch's `scatter_reduce`).
    mul: dy · Π of the others = dy · Π / own if nothing is 0; with a single 0, only that factor has a gradient.
    """
    kind = node.op_type.removeprefix("Scatter")
    axis = {"axis": node.attributes.get_int("axis", 0)} if kind == "Elements" else {}

    def read(v: Value) -> Value:
        return getattr(op, f"Gather{kind}")(v, indices, **axis)

    def write(v: Value, updates: Value, **reduction: str) -> Value:
        return getattr(op, node.op_type)(v, indices, updates, **axis, **reduction)

    y, reduction = node.outputs[0], node.attributes.get_string("reduction", "none")
    if reduction == "none":
        return [write(dy, op.zeros(u)), None, read(dy)]
    if reduction == "add":
        return [dy, None, read(dy)]
    if reduction != "mul":
        from_x, from_u = op.cast(op.Equal(x, y), x), op.cast(op.Equal(u, read(y)), x)
        share = dy / write(from_x, from_u, reduction="add")
        return [share * from_x, None, read(share) * from_u]
    zero_x, zero_u = op.Equal(x, 0), op.Equal(u, 0)
    filled_x, filled_u = op.Where(zero_x, 1, x), op.Where(zero_u, 1, u)
    product = write(filled_x, filled_u, reduction="mul")
    zeros = write(op.cast(zero_x, x), op.cast(zero_u, x), reduction="add")
    none, single = (dy * (product * op.cast(op.Equal(zeros, count), x)) for count in (0, 1))
    dx = op.Where(zero_x, single, none / filled_x)
    return [dx, None, op.Where(zero_u, read(single), read(none) / filled_u)]


def trilu(op: Backward, node: Node, dy: Value, x: Value, *diagonal: Value) -> Gradients:
    """Trilu: dx = the same triangle of dy."""
    return [op.Trilu(dy, *diagonal, upper=node.attributes.get_int("upper", 1))]


def cum_sum(op: Backward, node: Node, dy: Value, x: Value, axis: Value) -> Gradients:
    """CumSum: dx = dy, summed in the other direction."""
    exclusive, reverse = (node.attributes.get_int(name, 0) for name in ("exclusive", "reverse"))
    return [op.CumSum(dy, axis, exclusive=exclusive, reverse=1 - reverse)]


def top_k(op: Backward, node: Node, dy: Value, x: Value, k: Value) -> Gradients:
    """TopK: dx = dy at the indices of the selected values."""
    return [op.ScatterElements(op.zeros(x), node.outputs[1], dy, axis=node.attributes.get_int("axis", -1))]


def compress(op: Backward, node: Node, dy: Value, x: Value, condition: Value) -> Gradients:
    """Compress: dx = dy at the selected entries, 0 elsewhere."""
    flat, axis = "axis" not in node.attributes, op.axis(node, x, 0)
    places = op.Compress(op.Range(0, op.Size(x) if flat else op.dim(x, axis), 1), condition, axis=0)
    places.shape = ir.Shape([None])
    return [put(op, x, places, dy) if flat else along_axis(op, x, places, dy, axis, add=False)]


def unique(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Unique: dx = dy at the first of equal values (JAX's choice), 0 elsewhere."""
    first = op.output(node, 1, "first", node.outputs[0])
    first.type, first.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([None])
    if "axis" not in node.attributes:
        return [put(op, x, first, dy)]
    return [along_axis(op, x, first, dy, op.axis(node, x, 0), add=False)]


def one_hot(op: Backward, node: Node, dy: Value, indices: Value, depth: Value, values: Value) -> Gradients:
    """y = off + (on − off) · hot: d off = Σ dy · (1 − hot), d on = Σ dy · hot."""
    indices, depth = (op.Cast(v, to=ir.DataType.INT64) for v in (indices, depth))
    hot = op.OneHot(indices, depth, [0, 1], axis=node.attributes.get_int("axis", -1))
    on, total = (op.Reshape(op.ReduceSum(v, keepdims=0), [1]) for v in (dy * op.cast(hot, dy), dy))
    return [None, None, op.Concat(total - on, on, axis=0)]


def reverse_sequence(op: Backward, node: Node, dy: Value, x: Value, lengths: Value) -> Gradients:
    """ReverseSequence is its own inverse: dx = dy, reversed in the same way."""
    batch, time = node.attributes.get_int("batch_axis", 1), node.attributes.get_int("time_axis", 0)
    return [op.ReverseSequence(dy, lengths, batch_axis=batch, time_axis=time)]


def dropout(
    op: Backward, node: Node, dy: Value, x: Value, ratio: Value | None = None, training: Value | None = None
) -> Gradients:
    """Dropout: dx = dy · mask / (1 − ratio) with the mask of the forward; dx = dy outside training."""
    fixed, y = op.constant(training), node.outputs[0]
    if training is None or (fixed is not None and not fixed.numpy().any()):
        return [dy]
    mask = op.output(node, 1, "mask", y)  # a second node would draw a different mask
    mask.type = ir.TensorType(ir.DataType.BOOL)
    keep_share = 1 - op.cast(ratio, y) if ratio is not None else op.like(0.5, y)
    if fixed is None:
        keep_share = op.Where(training, keep_share, 1)
    return [dy * (op.cast(mask, y) / keep_share)]


def _shape_with(op: Backward, x: Value, axis: int, indices: Value) -> Value:
    """Return x's shape as a tensor, with one axis replaced by the number of indices."""
    dims = [-1 if i == axis else d for i, d in enumerate(ranked(x))]
    if len(static := [d for d in dims if isinstance(d, int)]) == len(dims):
        return op.const(np.array(static, np.int64))
    sizes = (op.Size(indices) if i == axis else op.dim(x, i) for i in range(len(dims)))
    return op.Concat(*(op.Reshape(size, [1]) for size in sizes), axis=0)


RULES: Rules = {
    "Compress": compress,
    "CumSum": cum_sum,
    "Dropout": dropout,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter,
    "ScatterND": scatter,
    "TopK": top_k,
    "Trilu": trilu,
    "Unique": unique,
}
