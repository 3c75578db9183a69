"""Queries of the nodes of ONNX's own messages."""

import onnx

from ortpipe.graph.core.protos import graphs


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return a graph's nodes and those of its subgraphs."""
    return [node for inner in graphs(graph) for node in inner.node]


def is_quantized(model: onnx.ModelProto) -> bool:
    """Return whether a model has QuantizeLinear nodes."""
    return any(node.op_type == "QuantizeLinear" and not node.domain for node in model.graph.node)
