"""Freeing a fixed batch size: every place of a graph that holds the size follows the number of rows instead."""

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

STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}  # indices of initial states, [directions, N, …]
ROUNDS = 64  # of inference: a chain of Reshapes takes one each
Dims = list[int | None]


def free_batch_size(model: ir.Model, size: int) -> ir.Model:
    """Return a copy, for any batch size, of a model whose inputs have batches of `size` rows.

    Inputs, declared shapes, targets of Reshape, sizes of Expand and ConstantOfShape, ends of Slice along the rows,
    constants concatenated with rows, and initial states of recurrent layers follow the number of rows. The caller must
    verify that the copy gives the same results row by row: a graph may mix rows in other ways.
    """
    free_model, inferred_copy = model.clone(), model.clone()
    fold_sizes(inferred_copy, deep=True)
    infer(inferred_copy)
    fixed = {str(v.name): query.sizes(v) for node in inferred_copy.graph for v in node.outputs if v.name}
    data = query.data_inputs(free_model.graph)
    for value in data:
        fixed[str(value.name)] = query.sizes(value)
        value.shape = ir.Shape([None, *list(value.shape or ())[1:]])
    for output in free_model.graph.outputs:
        output.shape = None
    names, rewritten_nodes = Names(used_names(free_model.graph)), set[ir.Node]()
    name_batch(free_model)
    fold_sizes(free_model, deep=True)
    for _ in range(ROUNDS):
        changed = set[ir.Value]()  # values behind changed nodes: inference must run first
        for node in list(free_model.graph):
            if not changed.isdisjoint([x for x in (*node.inputs, *query.captured(node)) if x is not None]):
                changed.update(node.outputs)
            elif node.op_type in RULES and not node.domain and node not in rewritten_nodes:
                op = Builder(free_model.graph, node.name or node.op_type, before=node, names=names)
                if RULES[node.op_type](_BatchRewriter(op, size, fixed, data[0]), node):
                    changed.update(node.outputs)
                    rewritten_nodes.add(node)
        if not changed:
            break
        name_batch(free_model)
        fold_sizes(free_model, deep=True)
    return free_model


@dataclass(frozen=True)
class _BatchRewriter:
    """The context of a rule; a rule makes its node follow the number of rows, and returns whether it changed it."""

    op: Builder
    size: int
    fixed: Mapping[str, Dims | None]  # the sizes of each value in the original
    rows: ir.Value  # a data input

    def axis(self, value: ir.Value | None) -> int | None:
        """Return the axis of rows of a value: its size was known, and is free now."""
        before, now = self.before(value), query.sizes(value)
        if before is None or now is None or len(before) != len(now):
            return None
        return next((i for i, (b, n) in enumerate(zip(before, now, strict=True)) if n is None and b is not None), None)

    def before(self, value: ir.Value | None) -> Dims | None:
        return None if value is None else self.fixed.get(str(value.name))

    def expand(self, value: ir.Value, axis: int) -> ir.Value:
        """Return a constant with equal entries along an axis, one for each row."""
        op = self.op
        count = op.Gather(op.Shape(self.rows), op.const([0]))
        dims = [count if i == axis else op.const([1]) for i in range(len(query.sizes(value) or ()))]
        first = op.Slice(value, op.const([0]), op.const([1]), op.const([axis])) if self.size > 1 else value
        return op.Expand(first, op.Concat(*dims, axis=0))


def _reshape(rule: _BatchRewriter, node: ir.Node) -> bool:
    x, target, sizes = node.inputs[0], query.constant(node.inputs[1]), rule.before(node.outputs[0])
    axis, before = rule.axis(x), rule.before(x)
    if axis is None or before is None or target is None or sizes is None:
        return False
    new = target.tolist()
    row_place = _place(before, axis, sizes, rule.size)
    if row_place is None or new[row_place] in (0, -1):
        return False
    inferred_places = [i for i, entry in enumerate(new) if entry == -1]
    if inferred_places and (inferred_size := sizes[inferred_places[0]]) is not None:
        new[inferred_places[0]], inferred_places = inferred_size, []
    if inferred_places and (row_place != axis or sizes[row_place] != rule.size):
        return False
    new[row_place] = 0 if inferred_places else -1  # 0: the operand's size on this axis
    node.replace_input_with(1, rule.op.const(np.array(new, np.int64)))
    return True


def _expand(rule: _BatchRewriter, node: ir.Node) -> bool:
    x, target = node.inputs[0], query.constant(node.inputs[1])
    axis, before = rule.axis(x), rule.before(x)
    if axis is None or before is None or target is None:
        return False
    new, row_place = target.tolist(), axis + len(target) - len(before)
    if not 0 <= row_place < len(new) or new[row_place] == 1:
        return False
    new[row_place] = 1
    node.replace_input_with(1, rule.op.const(np.array(new, np.int64)))
    return True


def _slice(rule: _BatchRewriter, node: ir.Node) -> bool:
    axis = rule.axis(node.inputs[0])
    starts, ends, axes = (query.constant(v) for v in [*node.inputs[1:4], None][:3])
    if axis is None or starts is None or ends is None or axes is None or axis not in axes.tolist():
        return False
    row_place, last = axes.tolist().index(axis), np.iinfo(ends.dtype).max
    if starts[row_place] != 0 or not rule.size <= ends[row_place] < last:
        return False
    ends = np.where(np.arange(len(ends)) == row_place, last, ends).astype(ends.dtype)
    node.replace_input_with(2, rule.op.const(ends))
    return True


def _concat(rule: _BatchRewriter, node: ir.Node) -> bool:
    axes = [rule.axis(v) for v in node.inputs]
    row_axes = {axis for axis in axes if axis is not None}
    if len(row_axes) != 1 or node.attributes["axis"].as_int() in row_axes:
        return False
    [axis], changed = row_axes, False
    for i, value in enumerate(node.inputs):
        if value is not None and axes[i] is None and (query.sizes(value) or [])[axis : axis + 1] == [rule.size]:
            node.replace_input_with(i, rule.expand(value, axis))
            changed = True
    return changed


def _recurrent(rule: _BatchRewriter, node: ir.Node) -> bool:
    x, changed = query.sizes(node.inputs[0]), False
    for place in STATES[node.op_type] if x is None or x[1] is None else ():
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is not None and (query.sizes(value) or [])[1:2] == [rule.size]:
            node.replace_input_with(place, rule.expand(value, 1))
            changed = True
    return changed


RULES: dict[str, Callable[[_BatchRewriter, ir.Node], bool]] = {
    "Concat": _concat,
    "Expand": _expand,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "RNN": _recurrent,
    "Reshape": _reshape,
    "Slice": _slice,
}


def _place(before: Dims, axis: int, after: Dims, size: int) -> int | None:
    """Return the axis of a Reshape's result that holds the operand's rows: equally many entries are in front of it."""
    dims_in_front = before[:axis]
    if None in dims_in_front or not all(isinstance(d, int) for d in after[: axis + 1]):
        return 0 if axis == 0 and (after[0] is None or after[0] % size == 0) else None
    expected = int(np.prod([d for d in dims_in_front if d is not None] or [1]))
    places, product = [], 1
    for i, d in enumerate(after):
        if product == expected and d is not None and d % size == 0:
            places.append(i)
        if d is None:
            break
        product *= d
    return next((i for i in places if after[i] == size), places[0] if places else None)
