"""What the end of a graph says of its prediction: probabilities or raw scores, and the logits behind them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder

Kind = Literal["softmax", "sigmoid", "pair", "log_softmax", "log_sigmoid", "opposite"]
Bound = Literal["sum", "unit"]  # of values in [0, 1]: rows that sum to 1, or not known to
SAME_VALUES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Clip")
SELECTIONS = ("Slice", "Gather", "Split", "Expand", "ReduceMean", "ReduceMax", "ReduceMin")
JOINTS = ("Concat", "Max", "Min", "Mul")  # of values in [0, 1] they give values in [0, 1]
PRODUCTS = ("Gemm", "MatMul", "Conv", "ConvTranspose", "FusedGemm", "FusedMatMul")
UNBOUNDED = ("Neg", "Add", "Sub", "Mul", "Div", "Concat", "BatchNormalization")  # as their inputs are
DEPTH = 40  # nodes that are looked through
CLIPPED = 1e-5  # largest ε of a Clip to [ε, 1 − ε] that guards a logarithm and means nothing else


@dataclass(frozen=True)
class Head:
    """What is certain from the graph alone.

    Attributes:
        kind: the prediction is softmax(logits), sigmoid(logits), the pair [1 − σ(logits), σ(logits)], the logarithm of
            one of them, or opposite scores [−s, s]; None: none of them.
        logits: the value meant by `kind`, of the prediction's type and shape ([N, 1] for a pair).
        bound: the prediction lies in [0, 1], because a softmax or sigmoid made it.
        linear: the prediction comes straight from a product with weights, so that it can have any value.
    """

    kind: Kind | None = None
    logits: ir.Value | None = None
    bound: Bound | None = None
    linear: bool = False


@dataclass(frozen=True)
class _Peeled:
    """What lies behind nodes that change the shape or type of values, or clip them, and nothing else."""

    value: ir.Value
    low: float = 0.0
    high: float = 1.0


def read_head(graph: ir.Graph, output: ir.Value) -> tuple[Head, ir.Value]:
    """Return the head of an output, and the output.

    Where only changes of shape or of float type stand between the activation and the output, they are moved in front
    of it (in place), so that the logits have the prediction's own shape; the output is then another value of the same
    name.

    Raises:
        ConvertError: it holds the probabilities of several labels beside their complements, or ends in Hardmax.
    """
    peeled = _peel(output)
    while (scaled := _scaled_to_sum_1(peeled.value)) is not None and _bound(scaled) == "sum":  # it does already
        inner = _peel(scaled)
        peeled = _Peeled(inner.value, max(inner.low, peeled.low), min(inner.high, peeled.high))
    kind, logits = _activation(peeled.value)
    bound = _bound(output)
    producer = peeled.value.producer()
    if producer is not None and _of_pair(producer, second=1) is not None and (_width(output) or 2) > 2:
        raise ConvertError(
            "Two columns [1 − p, p] are the probabilities of one label.",
            got=f"{(_width(output) or 0) // 2} labels side by side in output {output.name!r}",
            fix="Export p alone, or convert the estimator itself.",
        )
    if producer is not None and producer.op_type == "Hardmax":
        raise ConvertError(
            "A prediction must move with the weights.",
            got=f"output {output.name!r} ends in Hardmax, which has no gradient",
            fix="Export the model with a Softmax in its place, or with the scores in front of it.",
        )
    if kind is None and bound is None:
        return Head("opposite" if _is_opposite(output) else None, None, None, _is_linear(output)), output
    if kind in ("log_softmax", "log_sigmoid"):
        return Head(kind, output, None), output
    if kind is None or logits is None or _same_form(kind, logits, output):
        return Head(kind, logits, bound), output
    if not _are_rows(peeled.value, kind, output):
        return Head(None, None, bound), output
    logits, output = _moved(graph, kind, logits, peeled, output)
    return Head(kind, logits, bound), output


def _peel(value: ir.Value, clipped: float = CLIPPED) -> _Peeled:
    """Look through nodes that keep the values and their order, and through a Clip to [ε, 1 − ε] with ε so small."""
    low, high = 0.0, 1.0
    for _ in range(DEPTH):
        node = value.producer()
        if node is None or node.op_type not in SAME_VALUES or node.domain or (inner := node.inputs[0]) is None:
            break
        if node.op_type == "Cast" and inner.dtype not in query.FLOATS:
            break
        if node.op_type == "Transpose" and not _keeps_order(node, inner):
            break
        if node.op_type == "Clip":
            bounds = _clip_bounds(node)
            if bounds is None or bounds[0] > clipped or bounds[1] < 1 - clipped:
                break
            low, high = max(low, bounds[0]), min(high, bounds[1])
        value = inner
    return _Peeled(value, low, high)


def _keeps_order(node: ir.Node, value: ir.Value) -> bool:
    """Say whether a Transpose only moves dimensions of size 1."""
    if value.shape is None:
        return False
    rank = value.shape.rank()
    perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(rank))[::-1]
    moved = [axis for axis in perm if value.shape[axis] != 1]
    return moved == sorted(moved)


def _clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a Clip, those of [0, 1] where it has none; None: not known."""
    given = [*node.inputs[1:], None, None][:2]
    bounds = [np.array(d) if v is None else query.constant(v) for v, d in zip(given, (0.0, 1.0), strict=True)]
    low, high = (None if b is None or b.size != 1 else float(b.ravel()[0]) for b in bounds)
    return None if low is None or high is None else (low, high)


def _activation(value: ir.Value) -> tuple[Kind | None, ir.Value | None]:
    """Return which activation made a value, and of what."""
    node = value.producer()
    if node is None or node.domain:
        return None, None
    match node.op_type:
        case "Softmax" | "LogSoftmax" if _is_class_axis(node, value):
            return ("softmax" if node.op_type == "Softmax" else "log_softmax"), node.inputs[0]
        case "Sigmoid":
            return "sigmoid", node.inputs[0]
        case "Div" | "Mul" | "Reciprocal":
            if (z := _written_softmax(node)) is not None:
                return "softmax", z
            return ("sigmoid", z) if (z := _written_sigmoid(node)) is not None else (None, None)
        case "Exp":
            inner = _node(_input(node), "LogSoftmax")
            return ("softmax", inner.inputs[0]) if inner and _is_class_axis(inner, value) else (None, None)
        case "Log":
            bound = _bound(_input(node))
            return (None if bound is None else "log_softmax" if bound == "sum" else "log_sigmoid"), value
        case "Concat":
            return ("pair", z) if (z := _pair_logit(node)) is not None else (None, None)
    return None, None


def _is_class_axis(node: ir.Node, value: ir.Value) -> bool:
    """Say whether a softmax runs over the classes of each row: the one dimension besides the batch that is not 1."""
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    if value.shape is None:
        return axis == -1
    rank = value.shape.rank()
    axis += rank if axis < 0 else 0
    return axis == rank - 1 or (axis > 0 and all(d == 1 for i, d in enumerate(value.shape) if i not in (0, axis)))


def _written_softmax(node: ir.Node) -> ir.Value | None:
    """Return z of exp(z) / Σ exp(z), or of exp(z − max z) / Σ exp(z − max z), over the last axis."""
    divided = _quotient(node)
    if divided is None:
        return None
    top, bottom = divided
    total, exponential = _node(_broadcast(bottom), "ReduceSum"), _node(top, "Exp")
    if total is None or exponential is None or total.inputs[0] is not top or not _reduces_last(total, top):
        return None
    z = _input(exponential)
    shifted = _node(z, "Sub")
    if shifted is None or shifted.inputs[1] is None:
        return z
    largest = _node(_broadcast(shifted.inputs[1]), "ReduceMax")
    return shifted.inputs[0] if largest is not None and largest.inputs[0] is shifted.inputs[0] else z


def _quotient(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return a and b of a / b or a · (1 / b)."""
    if node.op_type not in ("Div", "Mul"):
        return None
    a, b = _input(node), _input(node, 1)
    if node.op_type == "Div":
        return a, b
    for top, factor in ((a, b), (b, a)):
        if (inverse := _node(factor, "Reciprocal")) is not None:
            return top, _input(inverse)
    return None


def _broadcast(value: ir.Value) -> ir.Value:
    """Look through what spreads one number per row over its columns."""
    for _ in range(DEPTH):
        node = value.producer()
        if node is None or node.op_type not in ("Identity", "Reshape", "Expand", "Squeeze", "Unsqueeze", "Max"):
            break
        inner = [v for v in node.inputs if v is not None and query.constant(v) is None]
        if node.op_type == "Max" and len(inner) != 1:  # of a constant, such as −inf, and the value
            break
        value = inner[0] if inner else value
        if not inner:
            break
    return value


def _reduces_last(node: ir.Node, value: ir.Value) -> bool:
    if "axes" in node.attributes:
        axes: list[int] | None = list(node.attributes["axes"].as_ints())
    else:
        held = query.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = None if held is None else held.ravel().tolist()
    return value.shape is not None and axes in ([-1], [value.shape.rank() - 1])


def _written_sigmoid(node: ir.Node) -> ir.Value | None:
    """Return z of 1 / (1 + exp(−z))."""
    if node.op_type == "Reciprocal":
        bottom = node.inputs[0]
    elif node.op_type == "Div" and _is_number(node.inputs[0], 1):
        bottom = node.inputs[1]
    else:
        return None
    add = _node(bottom, "Add")
    for one, other in () if add is None else ((add.inputs[0], add.inputs[1]), (add.inputs[1], add.inputs[0])):
        exponential = _node(other, "Exp") if _is_number(one, 1) else None
        if exponential is not None:
            return _negated(_input(exponential))
    return None


def _negated(value: ir.Value) -> ir.Value | None:
    """Return z of −z, −1 · z or 0 − z."""
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Neg":
        return node.inputs[0]
    if node.op_type == "Mul":
        for factor, z in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            if _is_number(factor, -1):
                return z
    return node.inputs[1] if node.op_type == "Sub" and _is_number(node.inputs[0], 0) else None


def _pair_logit(node: ir.Node) -> ir.Value | None:
    """Return z of [1 − σ(z), σ(z)], one column each."""
    p = _of_pair(node, second=1)
    kind, z = (None, None) if p is None else _activation(p)
    return z if kind == "sigmoid" and _width(node.outputs[0]) == 2 else None


def _of_pair(node: ir.Node, second: int) -> ir.Value | None:
    """Return p of a Concat of 1 − p and p, of which p stands first (0) or second (1)."""
    if node.op_type != "Concat" or len(node.inputs) != 2 or node.inputs[second] is None:
        return None
    p, rest = (None if v is None else _peel(v).value for v in (node.inputs[second], node.inputs[1 - second]))
    sub = _node(rest, "Sub")
    same = sub is not None and _is_number(sub.inputs[0], 1) and _peel(_input(sub, 1)).value is p
    return p if same else None


def _is_opposite(output: ir.Value) -> bool:
    """Say whether an output is a pair of opposite scores [−s, s]."""
    node = _node(_peel(output, clipped=-np.inf).value, "Concat")
    pair = node is not None and len(node.inputs) == 2 and _width(output) == 2
    return pair and node is not None and _negated(_input(node)) is node.inputs[1] is not None


def _scaled_to_sum_1(value: ir.Value) -> ir.Value | None:
    """Return p of p / Σ p, where a row of zeros may stay one."""
    node = value.producer()
    divided = None if node is None else _quotient(node)
    if divided is None:
        return None
    top, bottom = divided
    guard = _node(bottom, "Where")
    total = _node(_broadcast(bottom if guard is None else _input(guard, 2)), "ReduceSum")
    summed = None if total is None else total.inputs[0]
    size = _node(summed, "Abs")
    return top if total and top is (size.inputs[0] if size else summed) and _reduces_last(total, top) else None


def _bound(value: ir.Value, depth: int = DEPTH, known: dict[ir.Value, Bound | None] | None = None) -> Bound | None:
    """Return what a softmax or sigmoid behind a value guarantees of it."""
    known = {} if known is None else known
    if value not in known:
        known[value] = _bound_of(value, lambda inner: _bound(inner, depth - 1, known)) if depth else None
    return known[value]


def _bound_of(value: ir.Value, bound: Callable[[ir.Value], Bound | None]) -> Bound | None:
    behind = _peel(value, clipped=1.0).value
    node = behind.producer()
    if node is None or node.domain:
        return None
    inputs = [v for v in node.inputs if v is not None]
    kind, _ = _activation(behind) if node.op_type != "Log" else (None, None)
    if kind in ("softmax", "pair"):
        same = (_rank(behind), _width(behind)) == (_rank(value), _width(value))
        rows = (same and (kind == "pair" or _is_last_axis(node))) or _are_rows(behind, kind, value)
        return "sum" if rows and _peel(value).value is behind else "unit"
    if kind == "sigmoid" or node.op_type == "Softmax":
        return "unit"
    if node.op_type in SELECTIONS:
        return "unit" if bound(inputs[0]) else None
    if node.op_type in JOINTS and all(bound(v) for v in inputs):
        pair = _width(value) == 2 and any(_of_pair(node, place) is not None for place in (0, 1))
        return "sum" if pair else "unit"
    if node.op_type == "Mean":
        parts = {bound(v) for v in inputs}
        return None if None in parts else "unit" if "unit" in parts else "sum"
    if node.op_type == "Sub" and _is_number(inputs[0], 1):
        return "unit" if bound(inputs[1]) else None
    scaled = _scaled_to_sum_1(behind)
    return "sum" if scaled is not None and bound(scaled) else None


def _is_last_axis(node: ir.Node) -> bool:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    return axis == -1 or axis + 1 == _rank(node.outputs[0])


def _is_linear(output: ir.Value) -> bool:
    """Say whether a value is a product with weights, perhaps shifted, scaled or in another shape."""
    seen, stack = set[ir.Value](), [output]
    while stack:
        value = stack.pop()
        node = value.producer()
        if value in seen or node is None:
            continue
        seen.add(value)
        if node.op_type in PRODUCTS:
            return True
        if node.op_type in SAME_VALUES and node.op_type != "Clip":
            stack += [v for v in node.inputs[:1] if v is not None]
        elif node.op_type in UNBOUNDED:
            stack += [v for v in node.inputs if v is not None]
    return False


def _same_form(kind: Kind, logits: ir.Value, output: ir.Value) -> bool:
    """Say whether the logits have the prediction's type and shape, a pair's one column."""
    if logits.dtype != output.dtype or logits.shape is None or output.shape is None:
        return logits.dtype == output.dtype and logits.shape is output.shape is None
    last = 1 if kind == "pair" else output.shape[-1] if output.shape.rank() else None
    return logits.shape.rank() == output.shape.rank() and (not output.shape.rank() or logits.shape[-1] == last)


def _are_rows(activated: ir.Value, kind: Kind, output: ir.Value) -> bool:
    """Say whether the rows of a value, [N, 1, …, K, …, 1], are the output's rows [N, K] in another shape."""
    if activated.shape is None or _rank(output) != 2 or _width(output) is None:
        return False
    columns = [d for d in list(activated.shape)[1:] if d != 1]
    if kind == "sigmoid":  # each number for itself
        return all(isinstance(d, int) for d in columns) and math.prod(columns) == _width(output)
    return columns == [_width(output)]


def _moved(
    graph: ir.Graph, kind: Kind, logits: ir.Value, peeled: _Peeled, output: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Write the activation again behind the changes of shape and type; return the new logits and output."""
    producer, name = output.producer(), output.name
    assert producer is not None and output.dtype is not None and logits.dtype is not None
    op = Builder(graph, "head", before=producer)
    width = 1 if kind == "pair" else _width(output)
    shaped = op.Reshape(logits, op.const(np.array([-1, width])))
    z = op.cast(shaped, output) if logits.dtype != output.dtype else shaped
    z.type, z.shape = ir.TensorType(output.dtype), ir.Shape(["N", width])
    wider = output.dtype.itemsize > logits.dtype.itemsize  # what was computed in fewer digits stays so
    inner = op.cast(z, logits) if wider else z
    p = op.Softmax(inner, axis=-1) if kind == "softmax" else op.Sigmoid(inner)
    p = op.cast(p, output) if wider else p
    p = op.Concat(op.Sub(op.like(1, output), p), p, axis=-1) if kind == "pair" else p
    if (peeled.low, peeled.high) != (0.0, 1.0):
        p = op.Clip(p, op.like(peeled.low, output), op.like(peeled.high, output))
    p.type, p.shape = output.type, output.shape
    output.replace_all_uses_with(p, replace_graph_outputs=True)
    output.name, p.name = f"{name}/replaced", name
    return z, p


def _node(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that makes a value, where it is of this operator."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _input(node: ir.Node, place: int = 0) -> ir.Value:
    value = node.inputs[place]
    assert value is not None
    return value


def _is_number(value: ir.Value | None, number: float) -> bool:
    held = query.constant(value)
    return held is not None and held.size > 0 and bool((held == number).all())


def _rank(value: ir.Value) -> int | None:
    return value.shape.rank() if value.shape is not None else None


def _width(value: ir.Value) -> int | None:
    width = value.shape[-1] if value.shape is not None and value.shape.rank() else None
    return width if isinstance(width, int) else None
