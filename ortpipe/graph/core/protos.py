"""Queries of ONNX's own messages, which need no onnx-ir."""

from collections.abc import Iterator

import onnx


def graphs(body: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield a graph, or a function, and the graphs inside it at any depth."""
    yield body
    for attribute in (a for node in body.node for a in node.attribute):
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from graphs(inner)


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return a graph's nodes and those of its subgraphs."""
    return [node for inner in graphs(graph) for node in inner.node]


def is_quantized(model: onnx.ModelProto) -> bool:
    """Return whether a model has QuantizeLinear nodes."""
    return any(node.op_type == "QuantizeLinear" and not node.domain for node in model.graph.node)
