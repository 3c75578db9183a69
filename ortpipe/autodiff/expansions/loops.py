"""Loop with a known trip count as Scan, and Scan with all its axes first and all its directions forward."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import ranked
from ortpipe.errors import DeriveError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder


def flipped(op: Builder, x: Value, axis: int = 0) -> Value:
    """Return x backwards along an axis."""
    y = op.Slice(x, [-1], [np.iinfo(np.int64).min], [axis], [-1])
    y.type, y.shape = x.type, x.shape
    return y


def listed(values: Any) -> list[Value]:
    """Return a node's outputs as a list, however many they are."""
    return [values] if isinstance(values, Value) else list(values)


def scan(op: Builder, node: Node) -> Sequence[Value | None] | None:
    """Turn what is scanned outside of the scan: onnx.reference knows no axis but the first, and no way but forward."""
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
    """Return of each scanned input, or output, its axis and whether it is scanned backwards."""
    turns = []
    for name in (f"scan_{side}_axes", f"scan_{side}_directions"):
        turns.append(node.attributes.get_ints(name, [0] * count))
        if len(turns[-1]) != count:
            raise DeriveError(
                f"A Scan's {name} has one entry for each scanned {side}.",
                got=f"{len(turns[-1])} for {count} at node {node.name or node.outputs[0].name!r}",
                fix="Mend the node: onnxruntime does not run it either.",
            )
    return list(zip(*turns, strict=True))


def loop(op: Builder, node: Node) -> Sequence[Value | None] | None:
    """Write a Loop that always runs M times as a Scan over 0 … M − 1; other loops stay (their rule says why)."""
    if why_not_a_scan(node) is not None:
        return None
    trips, body = node.inputs[0], node.attributes.pop("body").as_graph()
    numbers = op.Range(0, op.Reshape(trips, []), 1)
    iteration, condition = body.inputs[:2]
    inner = Builder(body, op._prefix, before=body[0] if len(body) else None, names=op._names)
    ir.convenience.replace_all_uses_with(condition, inner.const(np.array(True)), replace_graph_outputs=True)
    iteration.type, iteration.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    body.inputs[:] = [*body.inputs[2:], iteration]
    for value, start in zip(body.inputs, node.inputs[2:], strict=False):
        assert start is not None
        value.type, value.shape = value.type or start.type, value.shape or start.shape
    body.outputs.pop(0)
    return listed(op.Scan(*node.inputs[2:], numbers, body=body, num_scan_inputs=1, outputs=len(node.outputs)))


def why_not_a_scan(node: Node) -> str | None:
    """Return why a Loop is no Scan: no trip count, a computed end, a state that changes its shape."""
    body = node.attributes["body"].as_graph()
    if node.inputs[0] is None:
        return "no trip count is given, so that it ends when its condition says so"
    if node.inputs[1] is not None and not _is_true(node.inputs[1]):
        return "its first condition is computed, so that it may not run at all"
    condition = body.outputs[0]
    if condition is not body.inputs[1] and not _is_true(condition, body.inputs[1]):
        return "its condition is computed in the body, so that it may end early"
    for old, new in zip(body.inputs[2:], body.outputs[1:], strict=False):
        if any(v.type is not None and not isinstance(v.type, ir.TensorType) for v in (old, new)):
            return f"its state {old.name!r} is a sequence or an optional value"
        if old.shape is not None and new.shape is not None and not _may_equal(old.shape, new.shape):
            return f"its state {old.name!r} changes its shape from {old.shape} to {new.shape}"
    return None


def _is_true(value: Value, passed_on: Value | None = None) -> bool:
    """Return whether a condition is a constant true, or passes on one that is `given`."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        if value is passed_on:
            return True
    tensor = query.tensor(value)
    return tensor is not None and not value.is_graph_input() and bool(tensor.numpy().all())


def _may_equal(a: ir.Shape, b: ir.Shape) -> bool:
    return a.rank() == b.rank() and all(
        x == y for x, y in zip(a, b, strict=True) if isinstance(x, int) and isinstance(y, int)
    )
