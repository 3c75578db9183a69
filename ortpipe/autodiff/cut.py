"""Separate a body from the gradient that was appended to it."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir import Graph, Node, Value

from ortpipe.autodiff.backward import Backward
from ortpipe.graph.core import query
from ortpipe.graph.core.operators import is_random, operands
from ortpipe.graph.core.reach import dependents


def cut(inner: Backward, outputs: Sequence[Value]) -> tuple[Graph, dict[Value, Value]]:
    """Move the nodes appended to a body that lead to the outputs into a graph of their own.

    Returns:
        The graph, whose inputs the caller still has to list, and its new input for each value it needs. Cheap values
        are recomputed instead: constants, shapes, masks and values that are equal in every step. So are values whose
        size may differ between steps, because a scan output cannot hold them.
    """
    body = inner.graph
    nodes = [n for n in body if n not in inner.forward]
    body.remove(nodes)
    graph = Graph([], outputs, nodes=nodes, opset_imports=body.opset_imports, name=f"{body.name}/gradient")
    prune(graph)
    forward = {*body.inputs, *(y for n in inner.forward for y in n.outputs)}
    varying = dependents(body, body.inputs, is_random)  # the values that differ from step to step
    resized = _resized(body, varying)
    copies: dict[Value, Value] = {}
    inputs: dict[Value, Value] = {}
    repeated: list[Node] = []

    def find(value: Value) -> Value:
        if value not in forward or value in copies:
            return copies.get(value, value)
        node = value.producer()
        if node is None or not _again(node, value, varying, resized):
            copies[value] = inputs[value] = inner.placeholder("kept", value, value.shape)
            return copies[value]
        read = [find(x) if x is not None else None for x in node.inputs]
        copy = Node(node.domain, node.op_type, read, list(node.attributes.values()), num_outputs=len(node.outputs))
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            copies[old] = inner.rename(new, f"{old.name}/again")
        copy.name = copies[value].name
        repeated.append(copy)
        return copies[value]

    for value in query.free(graph):
        find(value)
    for node in graph.all_nodes():
        for i, x in enumerate(node.inputs):
            if x in copies:
                node.replace_input_with(i, copies[x])
    if repeated:
        graph.insert_before(graph[0], repeated)
    return graph, inputs


def _resized(body: Graph, varying: set[Value]) -> set[Value]:
    """Return the values whose size may differ between steps because it depends on a varying value."""
    resized: set[Value] = set()
    for node in body:
        [first] = operands("sized_from").get(node.op_type, (len(node.inputs),))
        deciding = node.inputs[first:]
        if any(x in varying for x in deciding) or any(x in resized for x in node.inputs):
            resized.update(y for y in node.outputs if y.shape is None or not y.shape.is_static())
    return resized


def _again(node: Node, value: Value, varying: set[Value], resized: set[Value]) -> bool:
    if query.subgraphs(node) or is_random(node):
        return False
    return value not in varying or value in resized or (value.dtype not in query.FLOATS and len(node.outputs) == 1)


def distinct(inner: Backward, values: Sequence[Value], like: Sequence[Value]) -> list[Value]:
    """Return values computed by the gradient itself, each only once, to use as a subgraph's outputs."""
    results: list[Value] = []
    for value, counterpart in zip(values, like, strict=True):
        node = value.producer()
        if node is None or node.graph is not inner.graph or node in inner.forward or value in results:
            node = ir.node("Identity", [value])
            inner.graph.append(node)
            value = inner.rename(node.outputs[0], "grad/output")
            node.name = value.name
        value.type, value.shape = counterpart.type, counterpart.shape
        results.append(value)
    return results


def copied(op: Backward, graph: Graph) -> Graph:
    """Return a copy of a subgraph with unique names."""
    copy = graph.clone(allow_outer_scope_values=True)
    inputs = [*copy.inputs, *(v for n in copy.all_nodes() for g in query.subgraphs(n) for v in g.inputs)]
    for value in (*inputs, *copy.initializers.values(), *(y for n in copy.all_nodes() for y in n.outputs)):
        if value.name:
            op.rename(value, f"{value.name}/again")
    return copy


def prune(graph: Graph) -> None:
    """Remove unused nodes."""
    for node in reversed(graph):
        if not any(y.uses() or y.is_graph_output() for y in node.outputs):
            for inner in query.subgraphs(node):
                inner.outputs.clear()  # releases the outer values that the subgraph used
                prune(inner)
            graph.remove(node, safe=True)
