"""The head of a graph: whether its prediction holds probabilities or raw scores, and the logits behind them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.builder import Builder
from ortpipe.stages.convert import patterns
from ortpipe.stages.convert.patterns import (
    DEPTH,
    SAME_VALUES,
    Peeled,
    operator_of,
    pair_probability,
    peel,
    rank_of,
    width_of,
)
from ortpipe.stages.convert.shape_changes import SILENT, axis_after, nodes_between, reapply

Kind = Literal["softmax", "sigmoid", "pair", "log_softmax", "log_sigmoid", "opposite"]
Bound = Literal["sum", "unit"]  # of values in [0, 1]: "sum" if each row is known to sum to 1
SELECTIONS = ("Slice", "Gather", "Split", "Expand", "ReduceMean", "ReduceMax", "ReduceMin")
JOINTS = ("Concat", "Max", "Min", "Mul")  # which map values in [0, 1] to values in [0, 1]
PRODUCTS = ("Gemm", "MatMul", "Conv", "ConvTranspose", "FusedGemm", "FusedMatMul")
UNBOUNDED = ("Neg", "Add", "Sub", "Mul", "Div", "Concat", "BatchNormalization")  # if their inputs are


@dataclass(frozen=True)
class Head:
    """What the graph alone tells of a prediction.

    The prediction is softmax(logits), sigmoid(logits), the pair [1 − σ(logits), σ(logits)], the logarithm of one of
    them, opposite scores [−s, s], or none of these kinds.
    """

    kind: Kind | None = None
    logits: ir.Value | None = None  # of the prediction's type and shape ([N, 1] for a pair)
    bound: Bound | None = None  # the prediction lies in [0, 1], because it comes from a softmax or sigmoid
    linear: bool = False  # it comes straight from a product with weights, so that it can have any value
    axis: int | None = None  # of the prediction's softmax


def read_head(graph: ir.Graph, output: ir.Value) -> tuple[Head, ir.Value]:
    """Return the head of an output, and the output.

    Changes of shape or float type between the activation and the output are moved in front of the activation, in
    place, so that the logits have the prediction's shape; the output is then a new value of the same name.
    """
    if rank_of(output) not in (None, 2):
        return _read_elements(graph, output)
    peeled = peel(output)
    while (scaled := patterns.scaled_to_sum_1(peeled.value)) is not None and _bound(scaled) == "sum":  # scaled already
        inner = peel(scaled)
        peeled = Peeled(inner.value, max(inner.low, peeled.low), min(inner.high, peeled.high))
    kind, logits = _activation(peeled.value)
    bound = _bound(output)
    if pair_probability(peeled.value, second=1) is not None and (width_of(output) or 2) > 2:
        raise ConvertError(
            "Two columns [1 − p, p] are the probabilities of one label.",
            got=f"{(width_of(output) or 0) // 2} labels side by side in output {output.name!r}",
            fix="Name p, the value in front of the pairs, with {at}prediction, or convert the estimator itself.",
        )
    if operator_of(peeled.value)[0] == "Hardmax":
        raise ConvertError(
            "A prediction must have a gradient.",
            got=f"output {output.name!r} ends in Hardmax, which has no gradient",
            fix=f"End the graph in front of it: {{at}}prediction={_in_front(peeled.value)} with {{at}}scores=logits.",
        )
    if kind is None and bound is None:
        return Head("opposite" if patterns.is_opposite(output) else None, linear=_is_linear(output)), output
    if kind in ("log_softmax", "log_sigmoid"):
        return Head(kind, output), output
    if kind is None or logits is None or _same_form(kind, logits, output):
        return Head(kind, logits, bound), output
    if not _are_rows(peeled.value, kind, output):
        return Head(bound=bound), output
    logits, output = _move_activation(graph, kind, logits, peeled, output)
    return Head(kind, logits, bound), output


def _in_front(value: ir.Value) -> str:
    node = value.producer()
    return str(node.inputs[0].name) if node is not None and node.inputs and node.inputs[0] is not None else "…"


def _read_elements(graph: ir.Graph, output: ir.Value) -> tuple[Head, ir.Value]:
    """Return the head and the output where that is not [N, K], but steps [N, T, K] or images [N, K, H, W]."""
    peeled = peel(output, ordered=False)
    kind, logits = _activation(peeled.value)
    node, rank = peeled.value.producer(), rank_of(peeled.value)
    nodes, axis = nodes_between(peeled.value, output), None
    if kind in ("softmax", "log_softmax") and rank is not None and node is not None:
        axis = axis_after(node.attributes.get_int("axis", -1) % rank, nodes)
    if kind == "log_softmax" and axis is not None:
        return Head(kind, output, axis=axis), output
    if logits is None or kind not in ("softmax", "sigmoid") or (kind == "softmax" and axis is None):
        bound = _bound(output)
        return Head(bound=bound, linear=bound is None and _is_linear(output)), output
    if logits.dtype != output.dtype or any(node.op_type not in SILENT for node in nodes):
        logits, output = _move_activation(graph, kind, logits, peeled, output, nodes, axis)
    return Head(kind, logits, "sum" if kind == "softmax" else "unit", axis=axis), output


def _activation(value: ir.Value) -> tuple[Kind | None, ir.Value | None]:
    """Return the activation that a value comes from, and the activation's input."""
    node = value.producer()
    match operator_of(value):
        case "Softmax", [z] if node is not None and patterns.is_class_axis(node, value):
            return "softmax", z
        case "LogSoftmax", [z] if node is not None and patterns.is_class_axis(node, value):
            return "log_softmax", z
        case "Sigmoid", [z]:
            return "sigmoid", z
        case (("Div" | "Mul" | "Reciprocal"), _):
            if (z := patterns.written_softmax(value)) is not None:
                return "softmax", z
            return ("sigmoid", z) if (z := patterns.written_sigmoid(value)) is not None else (None, None)
        case "Exp", [log]:
            kind, z = _activation(log) if operator_of(log)[0] == "LogSoftmax" else (None, None)
            return ("softmax", z) if kind is not None else (None, None)
        case "Log", [p]:
            bound = _bound(p)
            return (None if bound is None else "log_softmax" if bound == "sum" else "log_sigmoid"), value
        case "Concat", _ if (p := pair_probability(value, second=1)) is not None and width_of(value) == 2:
            kind, z = _activation(p)
            return ("pair", z) if kind == "sigmoid" else (None, None)
    return None, None


def _bound(value: ir.Value, depth: int = DEPTH, memo: dict[ir.Value, Bound | None] | None = None) -> Bound | None:
    """Return the bound that a softmax or sigmoid behind a value guarantees."""
    memo = {} if memo is None else memo
    if value not in memo:
        memo[value] = _bound_of(value, lambda inner: _bound(inner, depth - 1, memo)) if depth else None
    return memo[value]


def _bound_of(value: ir.Value, bound: Callable[[ir.Value], Bound | None]) -> Bound | None:
    behind = peel(value, clipped=1.0).value
    op_type, inputs = operator_of(behind)
    kind, _ = _activation(behind) if op_type != "Log" else (None, None)
    if kind in ("softmax", "pair"):
        same_shape = (rank_of(behind), width_of(behind)) == (rank_of(value), width_of(value))
        rows = (same_shape and (kind == "pair" or _is_last_axis(behind))) or _are_rows(behind, kind, value)
        return "sum" if rows and peel(value).value is behind else "unit"
    if kind == "sigmoid" or op_type == "Softmax":
        return "unit"
    if op_type in SELECTIONS:
        return "unit" if bound(inputs[0]) else None
    if op_type in JOINTS and all(bound(v) for v in inputs):
        is_pair = width_of(value) == 2 and any(pair_probability(behind, place) is not None for place in (0, 1))
        return "sum" if is_pair else "unit"
    if op_type == "Mean":
        parts = {bound(v) for v in inputs}
        return None if None in parts else "unit" if "unit" in parts else "sum"
    if op_type == "Sub" and patterns.is_number(inputs[0], 1):
        return "unit" if bound(inputs[1]) else None
    scaled = patterns.scaled_to_sum_1(behind)
    return "sum" if scaled is not None and bound(scaled) else None


def _is_last_axis(value: ir.Value) -> bool:
    node = value.producer()
    axis = -1 if node is None else node.attributes.get_int("axis", -1)
    return axis == -1 or axis + 1 == rank_of(value)


def _is_linear(output: ir.Value) -> bool:
    """Return whether a value is a product with weights, possibly shifted, scaled or reshaped."""
    seen, stack = set[ir.Value](), [output]
    while stack:
        value = stack.pop()
        node = value.producer()
        if value in seen or node is None:
            continue
        seen.add(value)
        if node.op_type in PRODUCTS:
            return True
        if node.op_type in UNBOUNDED:
            stack += [v for v in node.inputs if v is not None]
        elif node.op_type in SAME_VALUES and node.op_type != "Clip":
            stack += [v for v in node.inputs[:1] if v is not None]
    return False


def _same_form(kind: Kind, logits: ir.Value, output: ir.Value) -> bool:
    """Return whether the logits have the prediction's type and shape; those of a pair have one column."""
    if logits.dtype != output.dtype or logits.shape is None or output.shape is None:
        return logits.dtype == output.dtype and logits.shape is output.shape is None
    last = 1 if kind == "pair" else output.shape[-1] if output.shape.rank() else None
    return logits.shape.rank() == output.shape.rank() and (not output.shape.rank() or logits.shape[-1] == last)


def _are_rows(activated: ir.Value, kind: Kind, output: ir.Value) -> bool:
    """Return whether a value [N, 1, …, K, …, 1] holds the rows of the output [N, K] in another shape."""
    if activated.shape is None or rank_of(output) != 2 or width_of(output) is None:
        return False
    columns = [d for d in list(activated.shape)[1:] if d != 1]
    if kind == "sigmoid":  # elementwise: only the number of entries matters
        return all(isinstance(d, int) for d in columns) and math.prod(columns) == width_of(output)
    return columns == [width_of(output)]


def _move_activation(
    graph: ir.Graph,
    kind: Kind,
    logits: ir.Value,
    peeled: Peeled,
    output: ir.Value,
    nodes: Sequence[ir.Node] = (),
    axis: int | None = None,
) -> tuple[ir.Value, ir.Value]:
    """Move the activation behind the changes of shape and type; return the new logits and output.

    For an output that is not [N, K], `nodes` are those changes, and `axis` is the softmax's.
    """
    producer, name = output.producer(), output.name
    assert producer is not None and output.dtype is not None and logits.dtype is not None
    op = Builder(graph, "head", before=producer)
    width = 1 if kind == "pair" else width_of(output)
    reshaped = reapply(op, nodes, logits) if nodes else op.Reshape(logits, op.const(np.array([-1, width])))
    z = op.cast(reshaped, output) if logits.dtype != output.dtype else reshaped
    z.type, z.shape = ir.TensorType(output.dtype), output.shape if nodes else ir.Shape(["N", width])
    is_wider = output.dtype.itemsize > logits.dtype.itemsize  # keep the activation in its own, narrower type
    inner = op.cast(z, logits) if is_wider else z
    p = op.Softmax(inner, axis=-1 if axis is None else axis) if kind == "softmax" else op.Sigmoid(inner)
    p = op.cast(p, output) if is_wider else p
    p = op.Concat(op.Sub(op.like(1, output), p), p, axis=-1) if kind == "pair" else p
    if (peeled.low, peeled.high) != (0.0, 1.0):
        p = op.Clip(p, op.like(peeled.low, output), op.like(peeled.high, output))
    p.type, p.shape = output.type, output.shape
    output.replace_all_uses_with(p, replace_graph_outputs=True)
    output.name, p.name = f"{name}/replaced", name
    return z, p
