"""Patterns at the end of a graph: a softmax or sigmoid that is written out, [1 − p, p], changes of shape and type."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query

SAME_VALUES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Clip")
DEPTH = 40  # nodes that are looked through
CLIPPED = 1e-5  # largest ε of a Clip to [ε, 1 − ε] that guards a logarithm and means nothing else


@dataclass(frozen=True)
class Peeled:
    """What lies behind nodes that change the shape or type of values, or clip them, and nothing else."""

    value: ir.Value
    low: float = 0.0
    high: float = 1.0


def peel(value: ir.Value, clipped: float = CLIPPED) -> Peeled:
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
    return Peeled(value, low, high)


def _keeps_order(node: ir.Node, value: ir.Value) -> bool:
    """Say whether a Transpose only moves dimensions of size 1."""
    if value.shape is None:
        return False
    rank = value.shape.rank()
    perm = node.attributes.get_ints("perm", list(range(rank))[::-1])
    moved = [axis for axis in perm if value.shape[axis] != 1]
    return moved == sorted(moved)


def _clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a Clip, those of [0, 1] where it has none; None: not known."""
    operands = [*node.inputs[1:], None, None][:2]
    bounds = [np.array(d) if v is None else query.constant(v) for v, d in zip(operands, (0.0, 1.0), strict=True)]
    low, high = (None if b is None or b.size != 1 else float(b.ravel()[0]) for b in bounds)
    return None if low is None or high is None else (low, high)


def is_class_axis(node: ir.Node, value: ir.Value) -> bool:
    """Say whether a softmax runs over the classes of each row: the one dimension besides the batch that is not 1."""
    axis = node.attributes.get_int("axis", -1)
    if value.shape is None:
        return axis == -1
    rank = value.shape.rank()
    axis += rank if axis < 0 else 0
    return axis == rank - 1 or (axis > 0 and all(d == 1 for i, d in enumerate(value.shape) if i not in (0, axis)))


def written_softmax(node: ir.Node) -> ir.Value | None:
    """Return z of exp(z) / Σ exp(z), or of exp(z − max z) / Σ exp(z − max z), over the last axis."""
    divided = quotient(node)
    if divided is None:
        return None
    top, bottom = divided
    total, exponential = maker(broadcast(bottom), "ReduceSum"), maker(top, "Exp")
    if total is None or exponential is None or total.inputs[0] is not top or not reduces_last(total, top):
        return None
    z = operand(exponential)
    shifted = maker(z, "Sub")
    if shifted is None or shifted.inputs[1] is None:
        return z
    largest = maker(broadcast(shifted.inputs[1]), "ReduceMax")
    return shifted.inputs[0] if largest is not None and largest.inputs[0] is shifted.inputs[0] else z


def quotient(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return a and b of a / b or a · (1 / b)."""
    if node.op_type not in ("Div", "Mul"):
        return None
    a, b = operand(node), operand(node, 1)
    if node.op_type == "Div":
        return a, b
    for top, factor in ((a, b), (b, a)):
        if (inverse := maker(factor, "Reciprocal")) is not None:
            return top, operand(inverse)
    return None


def broadcast(value: ir.Value) -> ir.Value:
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


def reduces_last(node: ir.Node, value: ir.Value) -> bool:
    """Say whether a reduction of a value runs over its last axis."""
    constant = query.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = node.attributes.get_ints("axes", () if constant is None else constant.ravel().tolist())
    return value.shape is not None and list(axes) in ([-1], [value.shape.rank() - 1])


def written_sigmoid(node: ir.Node) -> ir.Value | None:
    """Return z of 1 / (1 + exp(−z))."""
    if node.op_type == "Reciprocal":
        bottom = node.inputs[0]
    elif node.op_type == "Div" and is_number(node.inputs[0], 1):
        bottom = node.inputs[1]
    else:
        return None
    add = maker(bottom, "Add")
    for one, other in () if add is None else ((add.inputs[0], add.inputs[1]), (add.inputs[1], add.inputs[0])):
        exponential = maker(other, "Exp") if is_number(one, 1) else None
        if exponential is not None:
            return negated(operand(exponential))
    return None


def negated(value: ir.Value) -> ir.Value | None:
    """Return z of −z, −1 · z or 0 − z."""
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Neg":
        return node.inputs[0]
    if node.op_type == "Mul":
        for factor, z in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            if is_number(factor, -1):
                return z
    return node.inputs[1] if node.op_type == "Sub" and is_number(node.inputs[0], 0) else None


def of_pair(node: ir.Node, second: int) -> ir.Value | None:
    """Return p of a Concat of 1 − p and p, of which p stands first (0) or second (1)."""
    if node.op_type != "Concat" or len(node.inputs) != 2 or node.inputs[second] is None:
        return None
    p, rest = (None if v is None else peel(v).value for v in (node.inputs[second], node.inputs[1 - second]))
    sub = maker(rest, "Sub")
    same = sub is not None and is_number(sub.inputs[0], 1) and peel(operand(sub, 1)).value is p
    return p if same else None


def maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that makes a value, where it is of this operator."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None


def operand(node: ir.Node, place: int = 0) -> ir.Value:
    """Return an operand that the operator cannot do without."""
    value = node.inputs[place]
    assert value is not None
    return value


def is_number(value: ir.Value | None, number: float) -> bool:
    """Say whether a value is this number, in every place."""
    constant = query.constant(value)
    return constant is not None and constant.size > 0 and bool((constant == number).all())


def rank_of(value: ir.Value) -> int | None:
    """Return how many dimensions a value has, where that is known."""
    return value.shape.rank() if value.shape is not None else None


def width_of(value: ir.Value) -> int | None:
    """Return a value's last dimension, where that is known."""
    width = value.shape[-1] if value.shape is not None and value.shape.rank() else None
    return width if isinstance(width, int) else None
