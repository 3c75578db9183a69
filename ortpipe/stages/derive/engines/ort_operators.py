"""What the training build (1.19.2) differentiates: as it is, by ONNX's own function bodies, or rewritten here.

All else is refused by name before it starts: the build has no gradient for it, or a wrong one. The tables were found
by comparing its gradients with central differences.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.autodiff import windows
from ortpipe.autodiff.rules.pooling import along, membership
from ortpipe.autodiff.walk import between
from ortpipe.errors import DeriveError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.rewrite import Rewrite

# fmt: off
DIFFERENTIATED = frozenset((
    "Abs", "Add", "Cast", "Clip", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Gemm", "GlobalAveragePool", "Identity", "LeakyRelu", "Log", "LogSoftmax",
    "MatMul", "Max", "Min", "Mul", "Neg", "Pad", "Pow", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "Relu",
    "Reshape", "ScatterElements", "ScatterND", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze",
    "Sub", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where",
))
BODIES = frozenset((
    "CastLike", "Celu", "Gelu", "GroupNormalization", "HardSwish", "MeanVarianceNormalization",
    "Mish", "NegativeLogLikelihoodLoss", "PRelu", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare",
    "Shrink", "SoftmaxCrossEntropyLoss", "Softsign", "ThresholdedRelu",
))
# fmt: on


def _reduces(node: Node) -> bool:
    return node.attributes.get_string("reduction", "none") != "none"


def _backwards(node: Node) -> bool:
    steps = query.constant(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    return steps is None or bool((steps < 0).any())


# Operators of DIFFERENTIATED → why some of their forms are refused, and which
FAULTS: dict[str, tuple[str, Callable[[Node], bool]]] = {
    "Pad": (
        "its gradient holds for mode=constant and pads of every axis",
        lambda n: n.attributes.get_string("mode", "constant") != "constant" or len(n.inputs) > 3,
    ),
    "ReduceLogSumExp": (
        "its gradient holds where the axes are listed",
        lambda n: len(n.inputs) < 2 and "axes" not in n.attributes,
    ),
    "ScatterElements": ("its gradient with a reduction is wrong", _reduces),
    "ScatterND": ("its gradient with a reduction is wrong", _reduces),
    "Slice": ("its gradient holds for positive steps that are constants", _backwards),
    "Split": (
        "its gradient with an unused output is wrong",
        lambda n: not all(y.uses() or y.is_graph_output() for y in n.outputs),
    ),
}


UNWRITTEN = {  # why an operator is left as it is, where there is more to say than that it has no gradient
    **dict.fromkeys(("If", "Loop"), "; control flow kills the gradient builder"),
    **dict.fromkeys(("BatchNormalization", "LayerNormalization"), "; it is rewritten only where the rank is known"),
    "AveragePool": "; it is rewritten only where its sizes are static",
    **dict.fromkeys(("ConvTranspose", "Resize"), "; its gradient has no kernel on the CPU"),
    **dict.fromkeys(("GRU", "LSTM"), "; its gradient kills the process in some forms"),
    "MaxPool": "; its gradient with Indices is no operator that a model may hold",
}


def check_differentiable(graph: Graph, outputs: Sequence[str], sources: Sequence[str]) -> None:
    """Refuse the first operator between the sources and the outputs whose gradient is wrong or missing, by name."""
    for node in between(graph, outputs, sources):
        reason, applies = FAULTS.get(node.op_type, ("", lambda n: False))
        if node.op_type not in DIFFERENTIATED or node.domain:
            reason = f"the training build has no gradient for it, or a wrong one{UNWRITTEN.get(node.op_type, '')}"
        elif not applies(node):
            continue
        raise DeriveError(
            "The ort engine differentiates only what the training build does right.",
            got=f"{node.op_type} at node {node.name or node.outputs[0].name!r}: {reason}",
            fix="Choose derive=native, or freeze the parameters in front of it ({@derive.frozen}).",
        )


def elu(op: Builder, node: Node) -> list[Value]:
    """x, or γ·α·(eˣ − 1) below 0 and γ·x above (γ = 1 but for Selu); the body's eˣ overflows where it is not read."""
    x, selu = _first(node), node.op_type == "Selu"
    gamma = node.attributes.get_float("gamma", 1.0507009873554805 if selu else 1.0)
    alpha = gamma * node.attributes.get_float("alpha", 1.6732632423543772 if selu else 1.0)
    positive = op.Greater(x, 0)
    below = op.Exp(op.Where(positive, 0, x)) - 1
    return [op.Where(positive, x * gamma, below * alpha)]


def softplus(op: Builder, node: Node) -> list[Value]:
    """log(1 + eˣ) = m + log(e⁻ᵐ + eˣ⁻ᵐ) with m = max(x, 0), which overflows nowhere; the body's does."""
    x = _first(node)
    m = op.Relu(x)
    return [m + op.Log(op.Exp(-m) + op.Exp(x - m))]


def hard_sigmoid(op: Builder, node: Node) -> list[Value]:
    """α·x + β, held between 0 and 1; of the body's Max and Min the build has no right gradient in float16."""
    x, at = _first(node), node.attributes
    return [op.Clip(x * at.get_float("alpha", 0.2) + at.get_float("beta", 0.5), 0, 1)]


def sum_(op: Builder, node: Node) -> list[Value]:
    """x₁ + x₂ + …, two at a time; Mean: divided by their number."""
    total: Any = functools.reduce(op.Add, node.inputs)
    return [total * (1 / len(node.inputs)) if node.op_type == "Mean" else op.Identity(total)]


def mat_mul(op: Builder, node: Node) -> list[Value] | None:
    """A vector made a matrix of one row or column for the product."""
    (a, b), ranks = node.inputs, [x.shape.rank() if x is not None and x.shape is not None else 0 for x in node.inputs]
    if 1 not in ranks:
        return None
    a = op.Unsqueeze(a, op.const(np.array([0]))) if ranks[0] == 1 else a
    b = op.Unsqueeze(b, op.const(np.array([-1]))) if ranks[1] == 1 else b
    axes = [axis for axis, rank in zip((-2, -1), ranks, strict=True) if rank == 1]
    return [op.Squeeze(op.MatMul(a, b), op.const(np.array(axes)))]


def batch_normalization(op: Builder, node: Node) -> list[Value] | None:
    """(x − μ) / √(σ² + ε) · scale + bias by channel; in training μ and σ² are the batch's, and the running move."""
    x, scale, bias, mean, variance = node.inputs
    if x is None or x.shape is None:
        return None
    rank, training = x.shape.rank(), node.attributes.get_int("training_mode", 0)
    axes, vector = [i for i in range(rank) if i != 1], op.const(np.array([-1]))
    scale, bias, mu, sigma = (op.Reshape(v, op.const(np.array([-1] + [1] * (rank - 2)))) for v in node.inputs[1:])
    if training:
        mu = _mean(op, x, axes)
        sigma = _mean(op, (x - mu) * (x - mu), axes)
    y = (x - mu) / _root(op, node, sigma) * scale + bias
    momentum = node.attributes.get_float("momentum", 0.9)
    pairs = [(mean, mu), (variance, sigma)] if training else []
    return [y, *(op.Add(op.Mul(r, momentum), op.Reshape(v, vector) * (1 - momentum)) for r, v in pairs)]


def layer_normalization(op: Builder, node: Node) -> list[Value] | None:
    """(x − μ) / √(σ² + ε) · scale + bias over the last axes, μ and 1 / √(σ² + ε); the builder dies of the body."""
    x, scale, bias = (*node.inputs, None)[:3]
    if x is None or x.shape is None:
        return None
    rank = x.shape.rank()
    axes = list(range(node.attributes.get_int("axis", -1) % rank, rank))
    mu = _mean(op, x, axes)
    centred = x - mu
    root = _root(op, node, _mean(op, centred * centred, axes))
    y = centred / root * scale
    statistics = zip((mu, 1 / root), node.outputs[1:], strict=False)
    return [y + bias if bias is not None else y, *(op.cast(v, like) for v, like in statistics)]


def _mean(op: Builder, x: Value, axes: list[int]) -> Value:
    return op.ReduceMean(x, op.const(np.array(axes)))


def _root(op: Builder, node: Node, variance: Value) -> Value:
    return op.Sqrt(variance + node.attributes.get_float("epsilon", 1e-5))


def transpose(op: Builder, node: Node) -> list[Value] | None:
    """The reversed perm spelled out: the builder dies without one."""
    x = _first(node)
    if "perm" in node.attributes or x.shape is None:
        return None
    return [op.Transpose(x, perm=list(range(x.shape.rank()))[::-1])]


def dropout(op: Builder, node: Node) -> list[Value]:
    """x · Dropout(1, 1, …): what is drawn depends on nothing that is trained. In inference the value itself."""
    x = _first(node)
    if len(node.inputs) < 3 and len(node.outputs) == 1:
        return [op.Identity(x)]
    unit = ir.tensor(np.ones(1, x.dtype.numpy() if x.dtype is not None else np.float32))
    attributes = {name: a.value for name, a in node.attributes.items()}
    drawn, mask = op.Dropout(op.ConstantOfShape(op.Shape(x), value=unit), *node.inputs[1:], outputs=2, **attributes)
    return [x * drawn, mask]


def where(op: Builder, node: Node) -> list[Value] | None:
    """Both branches expanded to the result's shape."""
    condition, a, b = node.inputs
    shapes = [v.shape for v in node.inputs if v is not None]
    if None not in shapes and shapes[0] == shapes[1] == shapes[2]:
        return None
    sides = [op.Shape(v) for v in node.inputs]
    a = op.Expand(op.Expand(a, sides[0]), sides[2])
    return [op.Where(condition, a, op.Expand(op.Expand(b, sides[0]), sides[1]))]


def conv(op: Builder, node: Node) -> list[Value] | None:
    """Pads written out, where auto_pad says them."""
    if windows.auto_pad(node) == "NOTSET":
        return None
    attributes = {name: a.value for name, a in node.attributes.items() if name not in ("auto_pad", "pads")}
    return [op.Conv(*node.inputs, pads=windows.window(node).pads.tolist(), **attributes)]


def max_pool(op: Builder, node: Node) -> list[Value] | None:
    """max(…) of one strided slice for each place in the window; the first of equals has the gradient."""
    if len(node.outputs) > 1:
        return None
    x, w = _first(node), windows.window(node)
    assert x.dtype is not None
    counts, n = np.array(windows.static(node, node.outputs[0])), len(w.kernel)
    reach = (counts - 1) * w.strides + w.extents
    end = np.maximum(reach - windows.static(node, x) - w.begin, 0).tolist()
    if any((*w.begin, *end)):
        x = op.Pad(x, op.const(np.array([0, 0, *w.begin, 0, 0, *end])), op.like(float(x.dtype.min), x))
    over, steps = op.const(np.arange(2, 2 + n)), op.const(np.array(w.strides))
    largest: Any = None
    for place in np.ndindex(*w.kernel):
        start = np.array(place) * w.dilations
        part = op.Slice(x, op.const(start), op.const(start + (counts - 1) * w.strides + 1), over, steps)
        largest = part if largest is None else op.Where(op.GreaterOrEqual(largest, part), largest, part)
    return [largest]


def average_pool(op: Builder, node: Node) -> list[Value]:
    """A product with one matrix per axis, which says what places a window averages."""
    y, w = _first(node), windows.window(node)
    include = bool(node.attributes.get_int("count_include_pad", 0))
    sizes = zip(windows.static(node, y), windows.static(node, node.outputs[0]), strict=True)
    for axis, (size, count) in enumerate(sizes):
        y = along(op, y, axis + 2, membership(w, axis, size, count, average=True, include=include))
    return [y]


REWRITES: dict[str, Rewrite] = {
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "Conv": conv,
    "Dropout": dropout,
    "Elu": elu,
    "HardSigmoid": hard_sigmoid,
    "LayerNormalization": layer_normalization,
    "MatMul": mat_mul,
    "MaxPool": max_pool,
    "Mean": sum_,
    "Reciprocal": lambda op, node: [1 / _first(node)],
    "Selu": elu,
    "Softplus": softplus,
    "Sum": sum_,
    "Transpose": transpose,
    "Where": where,
}


def _first(node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    return x
