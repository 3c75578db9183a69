"""Queries of ONNX's own messages, which need no onnx-ir, and ortpipe's metadata in them."""

from collections.abc import Iterator

import onnx

PREFIX = "ortpipe."  # of the keys of metadata that ortpipe writes into models


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


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without ortpipe's facts, which are outdated; other metadata stay."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    bare.metadata_props.extend(p for p in model.metadata_props if not p.key.startswith(PREFIX))
    return bare
