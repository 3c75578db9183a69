"""The nodes of a graph in the order in which the engines `xla` and `c` number random draws, so that these are equal."""

from collections.abc import Container, Iterable, Iterator

import onnx


def in_order(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield each node, followed by those of its subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from in_order(graph.node)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in a node's attributes."""
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def unsupported(model: onnx.ModelProto, supported: Container[str]) -> str | None:
    """Return words about the operators that an engine lacks, naming each; None if there are none."""
    missing = {
        node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        for node in in_order(model.graph.node)
        if node.op_type not in supported or node.domain not in ("", "ai.onnx")
    }
    return f"unsupported operators: {', '.join(sorted(missing))}" if missing else None
