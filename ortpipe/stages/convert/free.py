"""A fixed batch made free: every place of a graph that holds its size follows the number of rows instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.batch import name_batch
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.check import infer
from ortpipe.graph.sizes import fold_sizes

STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}  # the operands with an entry for each row, [directions, N, …]
ROUNDS = 64  # of inference: one for each Reshape behind a Reshape
Dims = list[int | None]


def freed(model: ir.Model, size: int) -> ir.Model:
    """Return a copy of a model whose inputs have batches of one size, for batches of any.

    Inputs, declared shapes, targets of Reshape, sizes of Expand and ConstantOfShape, ends of Slice along the rows,
    constants that are joined with rows, and first states of recurrent layers follow the number of rows. Whether the
    copy gives row by row what the model gives is for the caller to verify: a graph may mix rows in other ways.
    """
    own, twin = model.clone(), model.clone()
    fold_sizes(twin, deep=True)
    infer(twin)
    fixed = {str(v.name): query.sizes(v) for node in twin.graph for v in node.outputs if v.name}
    data = query.data_inputs(own.graph)
    for value in data:
        fixed[str(value.name)] = query.sizes(value)
        value.shape = ir.Shape([None, *list(value.shape or ())[1:]])
    for output in own.graph.outputs:
        output.shape = None
    names, done = Names(used_names(own.graph)), set[ir.Node]()
    name_batch(own)
    fold_sizes(own, deep=True)
    for _ in range(ROUNDS):
        stale = set[ir.Value]()  # what depends on a node that was changed: its sizes are not known before inference
        for node in list(own.graph):
            if not stale.isdisjoint([x for x in (*node.inputs, *query.captured(node)) if x is not None]):
                stale.update(node.outputs)
            elif node.op_type in RULES and not node.domain and node not in done:
                op = Builder(own.graph, node.name or node.op_type, before=node, names=names)
                if RULES[node.op_type](_Freeing(op, size, fixed, data[0]), node):
                    stale.update(node.outputs)
                    done.add(node)
        if not stale:
            break
        name_batch(own)
        fold_sizes(own, deep=True)
    return own


@dataclass(frozen=True)
class _Freeing:
    """What a rule knows; each one lets its node follow the number of rows, and says whether it changed it."""

    op: Builder
    size: int
    fixed: Mapping[str, Dims | None]  # the sizes of each value as they were
    rows: ir.Value  # a data input

    def axis(self, value: ir.Value | None) -> int | None:
        """Return the axis along which a value has rows: its size was known, and is free now."""
        before, now = self.before(value), query.sizes(value)
        if before is None or now is None or len(before) != len(now):
            return None
        return next((i for i, (b, n) in enumerate(zip(before, now, strict=True)) if n is None and b is not None), None)

    def before(self, value: ir.Value | None) -> Dims | None:
        return None if value is None else self.fixed.get(str(value.name))

    def expanded(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the first of the equal entries of a constant along an axis, as often as there are rows."""
        op = self.op
        count = op.Gather(op.Shape(self.rows), op.const([0]))
        dims = [count if i == axis else op.const([1]) for i in range(len(query.sizes(value) or ()))]
        first = op.Slice(value, op.const([0]), op.const([1]), op.const([axis])) if self.size > 1 else value
        return op.Expand(first, op.Concat(*dims, axis=0))


def _reshape(rule: _Freeing, node: ir.Node) -> bool:
    x, target, sizes = node.inputs[0], query.constant(node.inputs[1]), rule.before(node.outputs[0])
    axis, before = rule.axis(x), rule.before(x)
    if axis is None or before is None or target is None or sizes is None:
        return False
    new = target.tolist()
    place = _place(before, axis, sizes, rule.size)
    if place is None or new[place] in (0, -1):
        return False
    rest = [i for i, entry in enumerate(new) if entry == -1]
    if rest and (known := sizes[rest[0]]) is not None:
        new[rest[0]], rest = known, []
    if rest and (place != axis or sizes[place] != rule.size):
        return False
    new[place] = 0 if rest else -1  # 0: as many as there were there
    node.replace_input_with(1, rule.op.const(np.array(new, np.int64)))
    return True


def _expand(rule: _Freeing, node: ir.Node) -> bool:
    x, target = node.inputs[0], query.constant(node.inputs[1])
    axis, before = rule.axis(x), rule.before(x)
    if axis is None or before is None or target is None:
        return False
    new, place = target.tolist(), axis + len(target) - len(before)
    if not 0 <= place < len(new) or new[place] == 1:
        return False
    new[place] = 1
    node.replace_input_with(1, rule.op.const(np.array(new, np.int64)))
    return True


def _slice(rule: _Freeing, node: ir.Node) -> bool:
    axis = rule.axis(node.inputs[0])
    starts, ends, axes = (query.constant(v) for v in [*node.inputs[1:4], None][:3])
    if axis is None or starts is None or ends is None or axes is None or axis not in axes.tolist():
        return False
    place, last = axes.tolist().index(axis), np.iinfo(ends.dtype).max
    if starts[place] != 0 or not rule.size <= ends[place] < last:
        return False
    ends = np.where(np.arange(len(ends)) == place, last, ends).astype(ends.dtype)
    node.replace_input_with(2, rule.op.const(ends))
    return True


def _concat(rule: _Freeing, node: ir.Node) -> bool:
    axes = [rule.axis(v) for v in node.inputs]
    found = {axis for axis in axes if axis is not None}
    if len(found) != 1 or node.attributes["axis"].as_int() in found:
        return False
    [axis], changed = found, False
    for i, value in enumerate(node.inputs):
        if value is not None and axes[i] is None and (query.sizes(value) or [])[axis : axis + 1] == [rule.size]:
            node.replace_input_with(i, rule.expanded(value, axis))
            changed = True
    return changed


def _recurrent(rule: _Freeing, node: ir.Node) -> bool:
    x, changed = query.sizes(node.inputs[0]), False
    for place in STATES[node.op_type] if x is None or x[1] is None else ():
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is not None and (query.sizes(value) or [])[1:2] == [rule.size]:
            node.replace_input_with(place, rule.expanded(value, 1))
            changed = True
    return changed


RULES: dict[str, Callable[[_Freeing, ir.Node], bool]] = {
    "Concat": _concat,
    "Expand": _expand,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "RNN": _recurrent,
    "Reshape": _reshape,
    "Slice": _slice,
}


def _place(before: Dims, axis: int, after: Dims, size: int) -> int | None:
    """Return the axis of a Reshape's result that its operand's rows go to: as many entries stand in front of it."""
    front = before[:axis]
    if None in front or not all(isinstance(d, int) for d in after[: axis + 1]):
        return 0 if axis == 0 and (after[0] is None or after[0] % size == 0) else None
    wanted = int(np.prod([d for d in front if d is not None] or [1]))
    places, passed = [], 1
    for i, d in enumerate(after):
        if passed == wanted and d is not None and d % size == 0:
            places.append(i)
        if d is None:
            break
        passed *= d
    return next((i for i in places if after[i] == size), places[0] if places else None)
