"""Loop with a known trip count as Scan, and Scan with all its axes first and all its directions forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.stages.derive.dimensions import ranked


def flipped(op: Builder, x: ir.Value, axis: int = 0) -> ir.Value:
    """Return x backwards along an axis."""
    first, step = (op.const(np.array([v], np.int64)) for v in (np.iinfo(np.int64).min, -1))
    made: ir.Value = op.Slice(x, step, first, op.const(np.array([axis], np.int64)), step)
    made.type, made.shape = x.type, x.shape
    return made


def scan(op: Builder, node: ir.Node) -> Sequence[ir.Value | None] | None:
    """Turn what is scanned outside of the scan: onnx.reference knows no axis but the first, and no way but forward."""
    count = node.attributes["num_scan_inputs"].as_int()
    states = len(node.inputs) - count
    outputs = len(node.outputs) - states
    given = {name: _ints(node, f"scan_{name}") for name in ("input_axes", "input_directions")}
    asked = {name: _ints(node, f"scan_{name}") for name in ("output_axes", "output_directions")}
    if not any(any(values) for values in (*given.values(), *asked.values())):
        for name in (*given, *asked):
            node.attributes.pop(f"scan_{name}", None)
        return None
    inputs = list(node.inputs)
    for i in range(count):
        x = inputs[states + i]
        assert x is not None
        axis, backward = (values[i] if values else 0 for values in given.values())
        inputs[states + i] = _turned(op, x, axis, backward, into=False)
    body = node.attributes["body"].as_graph()
    node.attributes.pop("body")  # a graph belongs to one node
    made = _outputs(op.Scan(*inputs, body=body, num_scan_inputs=count, outputs=len(node.outputs)))
    for new, old in zip(made[:states], node.outputs, strict=False):
        new.type, new.shape = old.type, old.shape
    for j in range(outputs):
        axis, backward = (values[j] if values else 0 for values in asked.values())
        rank = ranked(body.outputs[states + j]).rank()
        made[states + j] = _turned(op, made[states + j], axis, backward, into=True, rank=None if not axis else rank + 1)
    return made


def _turned(op: Builder, x: ir.Value, axis: int, backward: int, *, into: bool, rank: int | None = None) -> ir.Value:
    """Move an axis to the front, or the front to an axis, and turn it round where it goes backward."""
    if axis:
        rank = rank if rank is not None else ranked(x).rank()
        axis %= rank
        order = [axis, *(i for i in range(rank) if i != axis)]
        x = op.Transpose(x, perm=np.argsort(order).tolist() if into else order)
    return flipped(op, x, axis if into else 0) if backward else x


def _ints(node: ir.Node, name: str) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else []


def _outputs(made: ir.Value | tuple[ir.Value, ...]) -> list[ir.Value]:
    return [made] if isinstance(made, ir.Value) else list(made)


def loop(op: Builder, node: ir.Node) -> Sequence[ir.Value | None] | None:
    """Write a Loop that always runs M times as a Scan over 0 … M − 1; other loops stay (their rule says why)."""
    if why_not_a_scan(node) is not None:
        return None
    trips, body = node.inputs[0], node.attributes["body"].as_graph()
    node.attributes.pop("body")
    zero, one = op.const(np.int64(0)), op.const(np.int64(1))
    numbers = op.Range(zero, op.Reshape(trips, op.const(np.array([], np.int64))), one)
    iteration, condition = body.inputs[:2]
    inner = Builder(body, op._prefix, before=body[0] if len(body) else None, names=op._names)
    ir.convenience.replace_all_uses_with(condition, inner.const(np.array(True)), replace_graph_outputs=True)
    iteration.type, iteration.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    body.inputs[:] = [*body.inputs[2:], iteration]
    for value, start in zip(body.inputs, node.inputs[2:], strict=False):
        assert start is not None
        value.type, value.shape = value.type or start.type, value.shape or start.shape
    body.outputs.pop(0)
    return _outputs(op.Scan(*node.inputs[2:], numbers, body=body, num_scan_inputs=1, outputs=len(node.outputs)))


def why_not_a_scan(node: ir.Node) -> str | None:
    """Return why a Loop is no Scan: no trip count, a computed end, a state that changes its shape."""
    body = query.subgraphs(node)[0]
    if node.inputs[0] is None:
        return "no trip count is given, so that it ends when its condition says so"
    if node.inputs[1] is not None and not _is_true(node.inputs[1]):
        return "its first condition is computed, so that it may not run at all"
    kept = body.outputs[0]
    if kept is not body.inputs[1] and not _is_true(kept, body.inputs[1]):
        return "its condition is computed in the body, so that it may end early"
    for old, new in zip(body.inputs[2:], body.outputs[1:], strict=False):
        if any(v.type is not None and not isinstance(v.type, ir.TensorType) for v in (old, new)):
            return f"its state {old.name!r} is a sequence or an optional value"
        if old.shape is not None and new.shape is not None and not _may_equal(old.shape, new.shape):
            return f"its state {old.name!r} changes its shape from {old.shape} to {new.shape}"
    return None


def _is_true(value: ir.Value, given: ir.Value | None = None) -> bool:
    """Say whether a condition is a constant true, or passes on one that is `given`."""
    while (node := value.producer()) is not None and node.op_type == "Identity":
        passed = node.inputs[0]
        assert passed is not None
        if passed is given:
            return True
        value = passed
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not value.is_graph_input() and bool(tensor.numpy().all())


def _may_equal(a: ir.Shape, b: ir.Shape) -> bool:
    if a.rank() != b.rank():
        return False
    return all(x == y for x, y in zip(a, b, strict=True) if isinstance(x, int) and isinstance(y, int))
