"""Checkpointing: the backward pass recomputes forward values, segment by segment, instead of keeping them.

The forward nodes are cut into segments (Chen et al., 2016). Values that one segment passes to another are kept. The
backward pass recomputes the other values from them once the gradients of the later segments are known. The last segment
is not recomputed. Results of random nodes and of nodes with subgraphs are kept too: a second draw would differ.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.errors import DeriveError, nearest
from ortpipe.graph.core import query, selection
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.operators import is_random
from ortpipe.graph.core.query import FLOATS
from ortpipe.graph.core.reach import dependents
from ortpipe.stages.derive.stage import Seeded

AUTO = "auto"
ALL_KEPT = "keeps all that the backward pass reads: computing some again is not estimated to take less memory"


def checkpoint(graph: Graph, target: Seeded, gradients: Mapping[str, str], marks: str | Sequence[str]) -> list[str]:
    """Let the backward pass compute forward values again; return a note if it does not.

    `marks` are names or globs of values after which a segment ends; or `auto`: about √n segments for n values, or one
    where no number of segments is estimated to keep less.

    Raises:
        DeriveError: a mark is no forward value that follows from the data, or nothing would be computed again.
    """
    by_name, seeds = query.values(graph), target.seeds.values()
    ends = (str(target.total.name), *target.loss, *target.forward, *target.statistics.values())
    forward_ends, results = [by_name[name] for name in ends], {by_name[name] for name in gradients.values()}
    data = [value for value in query.data_inputs(graph) if value.name not in seeds]
    varying = dependents(graph, data, is_random)
    before, behind = query.ancestors(forward_ends), query.ancestors(results)
    forward = [node for node in graph if not before.isdisjoint(node.outputs)]
    backward = [node for node in graph if before.isdisjoint(node.outputs) and not behind.isdisjoint(node.outputs)]
    readers = _readers(backward)
    read_later = [y for node in forward for y in node.outputs if y in varying and y in readers]
    cuts = _automatic(forward, read_later, varying) if marks == AUTO else _marked(forward, varying, marks)
    segments = list[list[Node]]([[]])
    for place, node in enumerate(forward):
        segments[-1].append(node)
        if place in cuts:
            segments.append([])
    outside = _crossing(segments) | {*graph.outputs, *forward_ends}
    outside |= {y for node in forward if is_random(node) or query.subgraphs(node) for y in node.outputs}
    if _recompute(graph, segments, backward, readers, varying, outside, results):
        return []
    if marks == AUTO:
        return [ALL_KEPT]
    raise DeriveError(
        "{key} cuts the forward pass where the backward pass then has something to compute again.",
        key="checkpointing",
        got=f"{marks!r}: nothing that the backward pass reads lies inside a segment in front of the last",
        fix="Name values further apart, or leave {key} out.",
    )


class _Use(NamedTuple):
    """Where the backward pass reads a value."""

    top: Node  # of the graph itself
    node: Node  # the same one, or one in its subgraphs
    place: int  # among that one's inputs


def _recompute(
    graph: Graph,
    segments: Sequence[Sequence[Node]],
    backward: Sequence[Node],
    readers: Mapping[Value, Sequence[_Use]],
    varying: set[Value],
    outside: Collection[Value],
    gradients: Collection[Value],
) -> bool:
    """Compute values of all segments but the last again where the backward pass reads them; return whether any is."""
    names, places, changed = Names(used_names(graph)), {node: place for place, node in enumerate(backward)}, False
    for nodes in segments[:-1]:
        recomputed = [y for node in nodes for y in node.outputs if y in varying and y in readers and y not in outside]
        if not recomputed:
            continue
        first = min((use.top for y in recomputed for use in readers[y]), key=places.__getitem__)
        gradient = _latest_gradient(backward[: places[first]], varying.difference(gradients))
        if gradient is not None:
            op = Builder(graph, "again", before=first, names=names)
            copies = _computed_again(op, first, nodes, recomputed, gradient, varying.difference(outside), varying)
            for y in recomputed:
                for use in readers[y]:
                    use.node.replace_input_with(use.place, copies[y])
            changed = True
    return changed


def _computed_again(
    op: Builder,
    before: Node,
    nodes: Sequence[Node],
    recomputed: Sequence[Value],
    gradient: Value,
    inner: Collection[Value],
    varying: Collection[Value],
) -> dict[Value, Value]:
    """Return the values to compute again: by copies of the nodes that they need, behind a gradient.

    `inner`: the values that are computed again where they are needed; other ones that follow from the data are kept.
    """
    copies, needed, stack = dict[Value, Value](), set[Node](), [y.producer() for y in recomputed]
    while stack:
        if (node := stack.pop()) is not None and node not in needed:
            needed.add(node)
            stack += [x.producer() for x in node.inputs if x is not None and x in inner]
    empty = op.Cast(op.Slice(op.Reshape(gradient, [-1]), [0], [0]), to=ir.DataType.INT64)
    for node in nodes:
        if node not in needed:
            continue
        for x in node.inputs:
            if x is not None and x in varying and x not in copies:
                copies[x] = _behind(op, x, empty)
        read = [copies.get(x, x) if x is not None else None for x in node.inputs]
        if node.op_type == "BatchNormInternal" or node.attributes.get_int("training_mode", False):
            # it reads no running statistics then, and the runtime may write over them: the forward pass's own
            read[3:5] = [op.Expand(op.like(0, x), op.Shape(x)) for x in read[3:5] if x is not None]
        copy = Node(node.domain, node.op_type, read, list(node.attributes.values()), num_outputs=len(node.outputs))
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.type, new.shape, new.name = old.type, old.shape, ""
            if old.name:
                op.rename(new, f"{old.name}/again")
            if old in inner:
                copies[old] = new
        copy.name = copy.outputs[0].name
        op.graph.insert_before(before, copy)
    return copies


def _behind(op: Builder, x: Value, empty: Value) -> Value:
    """Return x again, bit for bit, but not before a gradient is known: with no entries of that scattered into it.

    Nodes that read the copy are therefore neither merged with forward nodes nor computed early.
    """
    if x.dtype == ir.DataType.STRING:
        return x
    if x.shape is None or x.dtype is None:
        node = x.producer()
        raise DeriveError(
            "{key} computes again from values of known rank.",
            key="checkpointing",
            got=f"{x.name!r}, which {query.called(node) if node is not None else 'the model'} gives, of unknown rank",
            fix="Name other values in {key}, or leave it out.",
        )
    rank = x.shape.rank()
    if rank == 0:
        return x
    nowhere = op.Unsqueeze(empty, range(rank - 1)) if rank > 1 else empty
    nothing = op.const(np.zeros([1] * (rank - 1) + [0], x.dtype.numpy()))
    behind: Value = op.ScatterElements(x, nowhere, nothing, axis=0)
    behind.type, behind.shape = x.type, x.shape
    return behind


def _readers(backward: Sequence[Node]) -> dict[Value, list[_Use]]:
    readers = defaultdict[Value, list[_Use]](list)
    for top in backward:
        for node in (top, *(inner for graph in query.subgraphs(top) for inner in graph.all_nodes())):
            for place, x in enumerate(node.inputs):
                if x is not None:
                    readers[x].append(_Use(top, node, place))
    return readers


def _crossing(segments: Sequence[Sequence[Node]]) -> set[Value]:
    """Return the values that another segment reads than the one that makes them."""
    number = {y: i for i, nodes in enumerate(segments) for node in nodes for y in node.outputs}
    return {
        x
        for i, nodes in enumerate(segments)
        for node in nodes
        for x in (*node.inputs, *query.captured(node))
        if x is not None and number.get(x, i) != i
    }


def _latest_gradient(backward: Sequence[Node], values: Collection[Value]) -> Value | None:
    """Return the last of these values that the backward pass has made so far: to wait for it is to wait for the rest.

    What train multiplies by the rate, or accumulates in one Gemm, is no such value: another reader would prevent that.
    """
    nodes = (node for node in reversed(backward) if node.op_type != "Gemm")
    return next((y for node in nodes for y in node.outputs if y in values and y.dtype in FLOATS), None)


def _marked(forward: Sequence[Node], varying: Collection[Value], marks: str | Sequence[str]) -> set[int]:
    """Return the places of the nodes that segments end with."""
    place = {str(y.name): i for i, node in enumerate(forward) for y in node.outputs if y in varying}
    patterns, rule = [marks] if isinstance(marks, str) else marks, "Every pattern in {key} must match a forward value."
    for pattern in patterns:
        if not selection.matches(pattern, list(place)):
            raise DeriveError(rule, key="checkpointing", got=repr(pattern), fix=nearest(pattern, list(place)))
    return {place[name] for pattern in patterns for name in selection.matches(pattern, list(place))}


def _automatic(forward: Sequence[Node], read_later: Sequence[Value], varying: Collection[Value]) -> set[int]:
    """Return where segments end: in parts of about equal size, where little crosses, as many as are estimated best.

    The estimate is what crosses and the largest part, in elements of a row; with no cut, all that is kept.
    """
    place = {y: i for i, node in enumerate(forward) for y in node.outputs}
    last = dict[Value, int]()
    for i, node in enumerate(forward):
        last |= dict.fromkeys((x for x in (*node.inputs, *query.captured(node)) if x in place and x in varying), i)
    weights, across = np.zeros(len(forward)), np.zeros(len(forward) + 1)
    for y in read_later:
        weights[place[y]] += _size(y)
    for x, i in last.items():
        across[place[x]] += _size(x)
        across[i] -= _size(x)
    done, across = np.cumsum(weights), np.cumsum(across)[:-1]
    best, least = set[int](), done[-1] if len(done) else 0
    for count in range(2, 2 * math.isqrt(len(read_later)) + 2):
        cuts, share = set[int](), done[-1] / count
        for target in share * np.arange(1, count):
            [near] = np.nonzero(abs(done - target) <= share / 2)
            if len(near):
                cuts.add(int(min(near, key=lambda i: (across[i], abs(done[i] - target)))))
        edges = [-1, *sorted(cuts), len(forward) - 1]
        parts = [weights[a + 1 : b + 1].sum() for a, b in itertools.pairwise(edges)]
        crossing = sum(_size(x) for x, i in last.items() if any(place[x] <= cut < i for cut in cuts))
        if crossing + max(parts) < least:
            best, least = cuts, crossing + max(parts)
    return best


def _size(x: Value) -> int:
    return math.prod(d for d in query.sizes(x) or () if d is not None)
