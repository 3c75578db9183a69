"""Queries of ONNX's own messages, which need no onnx-ir."""

from collections.abc import Iterator

import onnx


def graphs(body: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield a graph, or a function, and the graphs inside it at any depth."""
    yield body
    for attribute in (a for node in body.node for a in node.attribute):
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from graphs(inner)
