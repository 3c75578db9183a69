"""Rewrite a counting Loop as a Scan, and a Scan so that its axes come first and its directions are forward."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.open_shapes import ranked
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.rewrite import Rewrite

COMPARISONS = having("orders")
INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


def flipped(op: Builder, x: Value, axis: int = 0) -> Value:
    """Return x reversed along an axis."""
    y = op.Slice(x, [-1], [np.iinfo(np.int64).min], [axis], [-1])
    y.type, y.shape = x.type, x.shape
    return y


def listed(values: Any) -> list[Value]:
    """Return a node's outputs as a list, however many they are."""
    return [values] if isinstance(values, Value) else list(values)


def scan(op: Builder, node: Node) -> Sequence[Value | None] | None:
    """Transpose and reverse scanned values outside of the scan: onnx.reference only scans axis 0, forward."""
    count, body = node.attributes["num_scan_inputs"].as_int(), node.attributes["body"].as_graph()
    states, outputs = len(node.inputs) - count, len(node.outputs) - len(node.inputs) + count
    turns = {side: _turns(node, side, number) for side, number in (("input", count), ("output", outputs))}
    if not any(any(turn) for side in turns.values() for turn in side):
        for name in ("input_axes", "input_directions", "output_axes", "output_directions"):
            node.attributes.pop(f"scan_{name}", None)
        return None
    inputs = list(node.inputs)
    for i, (axis, backward) in enumerate(turns["input"], start=states):
        x = inputs[i]
        assert x is not None
        if axis:
            axis %= ranked(x).rank()
            x = op.Transpose(x, perm=[axis, *(j for j in range(ranked(x).rank()) if j != axis)])
        inputs[i] = flipped(op, x) if backward else x
    node.attributes.pop("body")  # a graph belongs to one node
    values = listed(op.Scan(*inputs, body=body, num_scan_inputs=count, outputs=len(node.outputs)))
    for new, old in zip(values[:states], node.outputs, strict=False):
        new.type, new.shape = old.type, old.shape
    for j, (axis, backward) in enumerate(turns["output"], start=states):
        if axis:
            rank = ranked(body.outputs[j]).rank() + 1
            axis %= rank
            order = [axis, *(i for i in range(rank) if i != axis)]
            values[j] = op.Transpose(values[j], perm=np.argsort(order).tolist())
        values[j] = flipped(op, values[j], axis) if backward else values[j]
    return values


def _turns(node: Node, side: str, count: int) -> list[tuple[int, int]]:
    """Return the axis of each scanned input or output, and whether it is scanned backwards."""
    turns = []
    for name in (f"scan_{side}_axes", f"scan_{side}_directions"):
        turns.append(node.attributes.get_ints(name, [0] * count))
        if len(turns[-1]) != count:
            raise DeriveError(
                f"A Scan's {name} has one entry for each scanned {side}.",
                got=f"{len(turns[-1])} for {count} at node {node.name or node.outputs[0].name!r}",
                fix="Correct the node; onnxruntime cannot run it either.",
            )
    return list(zip(*turns, strict=True))


def loop(op: Builder, node: Node) -> Sequence[Value | None] | None:
    """Rewrite a counting Loop as a Scan over 0 … trips − 1; other loops stay (their rule explains why).

    onnxruntime's Scan needs at least one step. If there may be none, one step runs and its results are discarded.
    """
    if why_not_a_scan(node) is not None:
        return None
    trips, never_zero = _trips(op, node)
    body = node.attributes.pop("body").as_graph()
    numbers = op.Range(0, trips if never_zero else op.Max(trips, 1), 1)
    iteration, condition = body.inputs[:2]
    inner = Builder(body, op._prefix, before=body[0] if len(body) else None, names=op._names)
    ir.convenience.replace_all_uses_with(condition, inner.const(np.array(True)), replace_graph_outputs=True)
    iteration.type, iteration.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    body.inputs[:] = [*body.inputs[2:], iteration]
    starts = [start for start in node.inputs[2:] if start is not None]
    for value, start in zip(body.inputs, starts, strict=False):
        value.type, value.shape = value.type or start.type, value.shape or start.shape
    body.outputs.pop(0)
    values = listed(op.Scan(*starts, numbers, body=body, num_scan_inputs=1, outputs=len(node.outputs)))
    if never_zero:
        return values
    for value, inside in zip(values, body.outputs, strict=True):
        value.type = inside.type
    ended = [op.Where(op.Greater(trips, 0), *pair) for pair in zip(values, starts, strict=False)]
    for value, start in zip(ended, starts, strict=True):
        value.type, value.shape = start.type, start.shape
    return [*ended, *(op.Slice(value, [0], op.Reshape(trips, [1]), [0]) for value in values[len(starts) :])]


def _trips(op: Builder, node: Node) -> tuple[Value, bool]:
    """Return the number of iterations of a Loop, and whether it is known to be at least one.

    The maximum is M; a step that ends with start + i + offset < bound is followed by another one.
    """
    constants, computed, at_least = list[int](), list[Value](), 1
    limits = [(bound, start, 1 - offset, 1) for bound, start, offset in _bounds(node) or ()]
    if node.inputs[0] is not None:
        limits.append((node.inputs[0], None, 0, 0))
    for bound, start, more, least in limits:
        numbers = [query.constant(v) if v is not None and not v.is_graph_input() else None for v in (bound, start)]
        if numbers[0] is not None and (start is None or numbers[1] is not None):
            first = int(numbers[1].item()) if numbers[1] is not None else 0
            constants.append(max(int(numbers[0].item()) - first + more, least))
            continue
        end, begin = (op.Reshape(op.Cast(v, to=ir.DataType.INT64), []) if v is not None else 0 for v in (bound, start))
        computed.append(op.Max(end - begin + more, least))
        at_least = min(at_least, least)
    trips = functools.reduce(op.Min, [*([op.const(np.array(min(constants)))] if constants else []), *computed])
    begins = node.inputs[1]
    if begins is not None and not _is_true(begins):
        trips, at_least = op.Where(op.Reshape(begins, []), trips, 0), 0
    trips.type, trips.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    return trips, at_least > 0 and min(constants, default=1) > 0


def why_not_a_scan(node: Node) -> str | None:
    """Return why a Loop cannot become a Scan: a computed condition, or a state that changes its shape."""
    body, bounds = node.attributes["body"].as_graph(), _bounds(node)
    if node.inputs[0] is None and not bounds:
        return "no trip count is given, so only its condition ends it"
    if bounds is None:
        return "its condition is computed in the body, so it may end early"
    for old, new in zip(body.inputs[2:], body.outputs[1:], strict=False):
        if any(v.type is not None and not isinstance(v.type, ir.TensorType) for v in (old, new)):
            return f"its state {old.name!r} is a sequence or an optional value"
        if old.shape is not None and new.shape is not None and not _may_equal(old.shape, new.shape):
            return f"its state {old.name!r} changes its shape from {old.shape} to {new.shape}"
    return None


def _bounds(node: Node) -> list[tuple[Value, Value | None, int]] | None:
    """Return the (bound, start, offset) of a condition that is a conjunction of start + i + offset < bound.

    Return None for any other condition. Without a start, it is 0.
    """
    body, bounds = node.attributes["body"].as_graph(), []
    parts = [body.outputs[0]]
    while parts:
        value = parts.pop()
        maker = value.producer()
        if value is body.inputs[1] or _is_true(value):
            continue
        inputs = [x for x in maker.inputs if x is not None] if maker is not None and maker.graph is body else []
        if maker is not None and maker.op_type in ("And", "Identity"):
            parts += inputs
            continue
        if maker is None or maker.op_type not in COMPARISONS or len(inputs) < 2:
            return None
        low, high = inputs[::-1] if maker.op_type.startswith("Greater") else inputs[:2]
        (count, offset), (bound, more) = _shifted(low), _shifted(high)
        start, end = _start(node, count), _outside(node, bound)
        if start is None or end is None or end.dtype not in INTEGERS:
            return None
        bounds.append((end, start[0], offset - more - maker.op_type.endswith("OrEqual")))
    return bounds


def _shifted(value: Value) -> tuple[Value, int]:
    """Return x and n for a value that is x + n."""
    offset = 0
    while (node := value.producer()) is not None and node.op_type in ("Add", "Cast", "Identity"):
        inputs = [x for x in node.inputs if x is not None]
        numbers = [query.constant(x) for x in inputs]
        added = [n for n in numbers if n is not None and n.size == 1 and n.dtype.kind == "i"]
        if len(added) != len(inputs) - 1 or value.dtype not in (None, *INTEGERS):
            break
        offset += int(added[0].item()) if added else 0
        [value] = [x for x, n in zip(inputs, numbers, strict=True) if n is None] or inputs[:1]
    return value, offset


def _start(node: Node, count: Value) -> tuple[Value | None] | None:
    """Return the start of a value that a Loop increments by 1; (None,): it counts iterations; None: it does neither."""
    body = node.attributes["body"].as_graph()
    if count is body.inputs[0]:
        return (None,)
    if count not in body.inputs[2:]:
        return None
    place = body.inputs.index(count)
    return (node.inputs[place],) if _shifted(body.outputs[place - 1]) == (count, 1) else None


def _outside(node: Node, value: Value) -> Value | None:
    """Return the outer value or constant that a value of a Loop's body always equals; None if it may change."""
    body, maker = node.attributes["body"].as_graph(), value.producer()
    if value in body.inputs:
        place = body.inputs.index(value)
        return node.inputs[place] if place > 1 and _shifted(body.outputs[place - 1]) == (value, 0) else None
    return value if maker is None or maker.graph is not body or query.constant(value) is not None else None


def _is_true(value: Value) -> bool:
    """Return whether a condition is constantly true."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
    tensor = query.tensor(value)
    return tensor is not None and not value.is_graph_input() and bool(tensor.numpy().all())


def _may_equal(a: ir.Shape, b: ir.Shape) -> bool:
    return a.rank() == b.rank() and all(
        x == y for x, y in zip(a, b, strict=True) if isinstance(x, int) and isinstance(y, int)
    )


EXPANSIONS: dict[str, Rewrite] = {"Loop": loop, "Scan": scan}
