"""Patterns at the end of a graph: a softmax or sigmoid that is written out, [1 − p, p], changes of shape and type."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query

SAME_VALUES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Clip")
DEPTH = 40  # nodes that a search follows
CLIPPED = 1e-5  # largest ε of a Clip to [ε, 1 − ε] that only guards a logarithm


def operator_of(value: ir.Value | None) -> tuple[str, list[Any]]:
    """Return the standard operator that produces a value, and its inputs; "" if there is none."""
    node = None if value is None else value.producer()
    return ("", []) if node is None or node.domain else (node.op_type, list(node.inputs))


def is_number(value: ir.Value | None, number: float) -> bool:
    """Return whether a value is a constant with this number in every place."""
    constant = query.constant(value)
    return constant is not None and constant.size > 0 and bool((constant == number).all())


def rank_of(value: ir.Value) -> int | None:
    """Return a value's number of dimensions, if known."""
    return value.shape.rank() if value.shape is not None else None


def width_of(value: ir.Value) -> int | None:
    """Return a value's last dimension, if known."""
    width = value.shape[-1] if value.shape is not None and value.shape.rank() else None
    return width if isinstance(width, int) else None


@dataclass(frozen=True)
class Peeled:
    """The value behind nodes that only change its shape or type or clip it to [low, high]."""

    value: ir.Value
    low: float = 0.0
    high: float = 1.0


def peel(value: ir.Value, clipped: float = CLIPPED, *, ordered: bool = True) -> Peeled:
    """Skip nodes that keep the values and their order, and a Clip to [ε, 1 − ε] with ε ≤ `clipped`.

    Unless `ordered`, any Transpose is skipped too.
    """
    low, high = 0.0, 1.0
    for _ in range(DEPTH):
        op_type, inputs = operator_of(value)
        node = value.producer()
        if node is None or op_type not in SAME_VALUES or inputs[0] is None:
            break
        if op_type == "Cast" and inputs[0].dtype not in query.FLOATS:
            break
        if op_type == "Transpose" and ordered and not _keeps_order(node, inputs[0]):
            break
        if op_type == "Clip":
            bounds = _clip_bounds(*inputs[1:])
            if bounds is None or bounds[0] > clipped or bounds[1] < 1 - clipped:
                break
            low, high = max(low, bounds[0]), min(high, bounds[1])
        value = inputs[0]
    return Peeled(value, low, high)


def _keeps_order(node: ir.Node, value: ir.Value) -> bool:
    """Return whether a Transpose only moves dimensions of size 1."""
    if value.shape is None:
        return False
    perm = node.attributes.get_ints("perm", list(range(value.shape.rank()))[::-1])
    longer_axes = [axis for axis in perm if value.shape[axis] != 1]
    return longer_axes == sorted(longer_axes)


def _clip_bounds(low: ir.Value | None = None, high: ir.Value | None = None) -> tuple[float, float] | None:
    """Return the bounds of a Clip, 0 and 1 by default; None: unknown."""
    bounds = [np.array(d) if v is None else query.constant(v) for v, d in ((low, 0.0), (high, 1.0))]
    first, last = (None if b is None or b.size != 1 else float(b.ravel()[0]) for b in bounds)
    return None if first is None or last is None else (first, last)


def is_class_axis(node: ir.Node, value: ir.Value) -> bool:
    """Return whether a softmax runs over classes, of a row or of each of its elements, not over the batch."""
    axis = node.attributes.get_int("axis", -1)
    return axis == -1 if value.shape is None else axis % value.shape.rank() > 0


def written_softmax(value: ir.Value) -> ir.Value | None:
    """Return z of exp(z) / Σ exp(z), or of exp(z − max z) / Σ exp(z − max z), over the last axis."""
    top, bottom = quotient(value)
    total = broadcast(bottom)
    match operator_of(top), operator_of(total):
        case ("Exp", [z]), ("ReduceSum", [terms, *_]) if terms is top and reduces_last(total, top):
            return without_shift(z)
    return None


def without_shift(value: ir.Value) -> ir.Value:
    """Return z of z − max z; any other value unchanged."""
    match operator_of(value):
        case "Sub", [z, largest]:
            match operator_of(broadcast(largest)):
                case "ReduceMax", [of, *_] if of is z:
                    return z
    return value


def scaled_to_sum_1(value: ir.Value) -> ir.Value | None:
    """Return p of p / Σ p, also with a guard that keeps a row of zeros."""
    top, bottom = quotient(value)
    guard_type, guard_inputs = operator_of(bottom)
    total = broadcast(guard_inputs[2] if guard_type == "Where" else bottom)
    match operator_of(total):
        case "ReduceSum", [terms, *_]:
            op_type, operands = operator_of(terms)
            unsigned_terms = operands[0] if op_type == "Abs" else terms
            return top if unsigned_terms is top and reduces_last(total, top) else None
    return None


def quotient(value: ir.Value) -> tuple[Any, Any]:
    """Return a and b of a / b or a · (1 / b); else None and None."""
    match operator_of(value):
        case "Div", [a, b]:
            return a, b
        case "Mul", [a, b]:
            for top, factor in ((a, b), (b, a)):
                op_type, inputs = operator_of(factor)
                if op_type == "Reciprocal":
                    return top, inputs[0]
    return None, None


def broadcast(value: Any) -> Any:
    """Skip nodes that spread one number per row over its columns."""
    for _ in range(DEPTH):
        op_type, inputs = operator_of(value)
        inner = [v for v in inputs if v is not None and query.constant(v) is None]
        if op_type not in ("Identity", "Reshape", "Expand", "Squeeze", "Unsqueeze", "Max") or not inner:
            break
        if op_type == "Max" and len(inner) != 1:  # of a constant, such as −inf, and the value
            break
        value = inner[0]
    return value


def reduces_last(total: ir.Value, value: ir.Value) -> bool:
    """Return whether a reduction of a value runs over its last axis."""
    node = total.producer()
    assert node is not None
    return value.shape is not None and query.axes(node, value.shape.rank()) == [value.shape.rank() - 1]


def written_sigmoid(value: ir.Value) -> ir.Value | None:
    """Return z of 1 / (1 + exp(−z))."""
    match operator_of(value):
        case "Reciprocal", [bottom]:
            pass
        case "Div", [first, bottom] if is_number(first, 1):
            pass
        case _:
            return None
    op_type, terms = operator_of(bottom)
    for first, second in (terms, terms[::-1]) if op_type == "Add" else ():
        match operator_of(second):
            case "Exp", [exponent] if is_number(first, 1):
                return negation_operand(exponent)
    return None


def negation_operand(value: ir.Value) -> ir.Value | None:
    """Return z of −z, −1 · z or 0 − z."""
    match operator_of(value):
        case "Neg", [z]:
            return z
        case "Mul", [a, b]:
            return b if is_number(a, -1) else a if is_number(b, -1) else None
        case "Sub", [zero, z] if is_number(zero, 0):
            return z
    return None


def pair_probability(value: ir.Value, second: int) -> ir.Value | None:
    """Return p of a Concat of 1 − p and p, with p at index `second`, 0 or 1."""
    match operator_of(value):
        case "Concat", [ir.Value(), ir.Value()] as columns:
            p = peel(columns[second]).value
            match operator_of(peel(columns[1 - second]).value):
                case "Sub", [minuend, subtrahend] if is_number(minuend, 1) and peel(subtrahend).value is p:
                    return p
    return None


def is_opposite(output: ir.Value) -> bool:
    """Return whether an output is a pair of opposite scores [−s, s]."""
    match operator_of(peel(output, clipped=-np.inf).value):
        case "Concat", [first, second]:
            return width_of(output) == 2 and first is not None and negation_operand(first) is second is not None
    return False
