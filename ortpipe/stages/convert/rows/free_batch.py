"""Freeing a fixed batch size: every place of a graph that holds the size follows the number of rows instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.operators import having
from ortpipe.graph.importing.batch import name_batch
from ortpipe.graph.importing.sizes import fold_sizes

STATES = (5, 6)  # indices of a recurrent layer's initial states, [directions, N, …]
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

    def set(self, node: ir.Node, place: int, constant: np.ndarray, i: int, entry: int) -> bool:
        """Replace an entry of a node's constant input."""
        entries = constant.copy()
        entries[i] = entry
        node.replace_input_with(place, self.op.const(entries))
        return True

    def expand(self, node: ir.Node, places: Iterable[int], axis: int) -> bool:
        """Give inputs of the batch's size, whose entries along an axis are equal, one entry for each row."""
        op, changed = self.op, False
        for place in places:
            value = node.inputs[place] if place < len(node.inputs) else None
            dims = query.sizes(value) or []
            if value is None or dims[axis : axis + 1] != [self.size]:
                continue
            count = op.Gather(op.Shape(self.rows), [0])
            first = op.Slice(value, [0], [1], [axis]) if self.size > 1 else value
            sizes = op.Concat(*(count if i == axis else [1] for i in range(len(dims))), axis=0)
            node.replace_input_with(place, op.Expand(first, sizes))
            changed = True
        return changed


def _reshape(rule: _BatchRewriter, node: ir.Node) -> bool:
    x, target, sizes = node.inputs[0], query.constant(node.inputs[1]), rule.before(node.outputs[0])
    axis, before = rule.axis(x), rule.before(x)
    if axis is None or before is None or target is None or sizes is None:
        return False
    place = _place(before, axis, sizes, rule.size)
    if place is None or target[place] in (0, -1):
        return False
    entries = np.array([t if t != -1 or n is None else n for t, n in zip(target, sizes, strict=True)], target.dtype)
    if -1 not in entries:
        return rule.set(node, 1, entries, place, -1)
    return place == axis and sizes[place] == rule.size and rule.set(node, 1, entries, place, 0)  # 0: the operand's size


def _expand(rule: _BatchRewriter, node: ir.Node) -> bool:
    target, axis, before = query.constant(node.inputs[1]), rule.axis(node.inputs[0]), rule.before(node.inputs[0])
    if axis is None or before is None or target is None:
        return False
    place = axis + len(target) - len(before)
    return 0 <= place < len(target) and target[place] != 1 and rule.set(node, 1, target, place, 1)


def _slice(rule: _BatchRewriter, node: ir.Node) -> bool:
    axis = rule.axis(node.inputs[0])
    starts, ends, axes = (query.constant(v) for v in [*node.inputs[1:4], None][:3])
    if axis is None or starts is None or ends is None or axes is None or axis not in axes:
        return False
    place, last = axes.tolist().index(axis), np.iinfo(ends.dtype).max
    return starts[place] == 0 and rule.size <= ends[place] < last and rule.set(node, 2, ends, place, last)


def _concat(rule: _BatchRewriter, node: ir.Node) -> bool:
    axes = {i: rule.axis(v) for i, v in enumerate(node.inputs)}
    row_axes = {axis for axis in axes.values() if axis is not None}
    if len(row_axes) != 1 or node.attributes["axis"].as_int() in row_axes:
        return False
    return rule.expand(node, [i for i, axis in axes.items() if axis is None], *row_axes)


def _recurrent(rule: _BatchRewriter, node: ir.Node) -> bool:
    x = query.sizes(node.inputs[0])
    return (x is None or x[1] is None) and rule.expand(node, STATES, 1)


RULES: dict[str, Callable[[_BatchRewriter, ir.Node], bool]] = {
    "Concat": _concat,
    "Expand": _expand,
    "Reshape": _reshape,
    "Slice": _slice,
    **dict.fromkeys(having("recurrent"), _recurrent),
}


def _place(before: Dims, axis: int, after: Dims, size: int) -> int | None:
    """Return the axis of a Reshape's result that holds the operand's rows: equally many entries are in front of it."""
    expected, sizes = math.prod(d or 0 for d in before[:axis]), [d or 0 for d in after]  # 0: unknown
    places = [i for i, d in enumerate(sizes) if math.prod(sizes[:i]) == expected > 0 and d % size == 0]
    return next((i for i in places if sizes[i] == size), next(iter(places), None))
