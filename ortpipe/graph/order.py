"""The order of a graph's nodes that onnxruntime sorts fastest.

It sorts a graph's nodes anew for each of its passes, and keeps those whose inputs are there, but whose turn has not
come, in a list that it walks from end to end for every node: where nodes stand far behind what they read, as updates
and derivatives of activations do in a step, that takes time by the square of their number.
"""

from collections import deque

import onnx

from ortpipe.graph.query import graphs

DEEP = 1_000  # nodes of a graph, from which on it is worth while


def sort_by_readiness(model: onnx.ModelProto) -> None:
    """Move each node of deep graphs to where its inputs are there; what any of them computes stays the same.

    What is held at once does not: the runtime works backward from the last node that no node reads. Where that is the
    update of the last layer, each weight is updated as soon as its gradient is there; where it is that of the first
    layer, the gradients of all layers' outputs are there before.
    """
    for graph in graphs(model.graph):
        if len(graph.node) >= DEEP:
            _sort(graph)


def _sort(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
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
    ranks = {name: rank for rank, place in enumerate(order) for name in nodes[place].output if name}
    graph.node.sort(key=lambda node: ranks[next(filter(None, node.output))])


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, also those that only its inner graphs do."""
    inner = [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]
    outputs = [output.name for graph in inner for output in graph.output]
    return [*node.input, *outputs, *(name for graph in inner for own in graph.node for name in _read(own))]
