"""Sort a graph's nodes such that onnxruntime's own sorting is fast.

onnxruntime sorts a graph's nodes again in each of its passes. It keeps ready nodes in a list and walks that list for
every node. If nodes come long after their inputs, as the updates of a step and derivatives of activations do, the time
grows with the square of their number.
"""

from collections import deque

import onnx

from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core.query import graphs


def sort_by_readiness(model: onnx.ModelProto, size: int = 0) -> None:
    """Move each node of a deep graph to where its inputs are ready; results stay the same, but peak memory changes.

    The runtime schedules backward from the last node without a user. If that is the update of the last layer, each
    weight is updated as soon as its gradient is ready; if it is that of the first layer, the gradients of all layers'
    outputs must exist before. So nodes without a user move to the end, the first ready one last, if there are few.
    Many would fill the list while they wait, so a graph with many of them and wide values is left unchanged. `size` is
    the size of all values in bytes, 0 if unknown.
    """
    wide = size >= THRESHOLDS.wide_bytes
    for graph in graphs(model.graph):
        if len(graph.node) >= (THRESHOLDS.sorted_wide_nodes if wide else THRESHOLDS.sorted_nodes):
            _sort(graph, wide=wide)


def _sort(graph: onnx.GraphProto | onnx.FunctionProto, *, wide: bool) -> None:
    nodes = [*graph.node]
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    read = [{makers[name] for name in _read(node) if name in makers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for place, sources in enumerate(read):
        for source in sources:
            readers[source].append(place)
    missing = [len(sources) for sources in read]
    ready, order = deque(place for place, count in enumerate(missing) if not count), list[int]()
    while ready:
        order.append(place := ready.popleft())
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    unread = [place for place in order if not readers[place]]
    if len(unread) <= THRESHOLDS.unread_share * len(nodes):
        order = [*(place for place in order if readers[place]), *reversed(unread)]
    elif wide:
        return
    ranks = {name: rank for rank, place in enumerate(order) for name in nodes[place].output if name}
    graph.node.sort(key=lambda node: ranks[next(filter(None, node.output))])


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node and its subgraphs read."""
    inner = [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]
    outputs = [output.name for graph in inner for output in graph.output]
    return [*node.input, *outputs, *(name for graph in inner for child in graph.node for name in _read(child))]
