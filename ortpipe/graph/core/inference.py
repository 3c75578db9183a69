"""Parse models, and set the shapes that onnx's inference finds in a graph; the errors of models that fail a check."""

import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph.core.check import FIX, inferred, proto_apart
from ortpipe.graph.core.query import subgraphs


def parsed(model: onnx.ModelProto) -> ir.Model:
    """Return the model as an onnx_ir.Model; raise ModelError where it cannot be read."""
    try:
        return ir.from_proto(model)
    except ir.serde.SerdeError as error:
        causes = [str(e).strip() for e in (error, error.__cause__) if e is not None]
        raise ModelError("A model must be readable.", got=causes[-1], fix=FIX) from error


def infer(model: ir.Model) -> None:
    """Set the types and shapes that inference finds."""
    for node in model.graph.all_nodes():
        if node.op_type == "STFT" and node.outputs[0].shape is None:  # onnx's inference gives up on unknown sizes
            frames, signal = node.outputs[0], node.inputs[0]
            if signal is not None and signal.type is not None:
                frames.type, frames.shape = signal.type, ir.Shape([None, None, None, 2])
    proto, _ = proto_apart(model, deep=True)
    _take_shapes(model.graph, inferred(proto).graph)


def _take_shapes(graph: ir.Graph, twin: onnx.GraphProto) -> None:
    """Set the types and shapes of a graph's values from `twin`, the same graph as protobuf with inferred shapes."""
    types = {value.name: value.type for value in (*twin.input, *twin.value_info, *twin.output)}
    for value in (*graph.inputs, *(o for node in graph for o in node.outputs), *graph.outputs):
        if (type_proto := types.get(value.name or "")) is not None:
            shape = ir.serde.deserialize_type_proto_for_shape(type_proto)
            value.type = ir.serde.deserialize_type_proto_for_type(type_proto) or value.type
            value.shape = value.shape if shape is None else shape
    for node, twin_node in zip(graph, twin.node, strict=True):
        subgraph_twins = [attribute.g for attribute in twin_node.attribute if attribute.HasField("g")]
        for subgraph, subgraph_twin in zip(subgraphs(node), subgraph_twins, strict=True):
            _take_shapes(subgraph, subgraph_twin)


def _ranked(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.HasField("shape")


def rejected(model: onnx.ModelProto, error: Exception) -> ModelError:
    """Return the error for a model that fails a check; it names the first node that leaves an output's rank unknown."""
    graph = model.graph
    if all(map(_ranked, graph.output)):
        actual = error.got if isinstance(error, ModelError) else str(error).strip()
        return ModelError("A model must pass onnx.checker with full check.", got=actual, fix=FIX)
    ranked = {v.name for v in (*graph.input, *graph.value_info, *graph.output) if _ranked(v)}
    ranked |= {t.name for t in graph.initializer}
    node = next(n for n in graph.node if any(name and name not in ranked for name in n.output))
    operator = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    value = next(name for name in node.output if name and name not in ranked)
    return ModelError(
        "The number of dimensions of every output must be known.",
        got=f"{operator} at node {node.name or value!r} gives {value!r}, whose shape is unknown",
        fix=f"Set the sizes of the inputs{{@sizes}}, end the graph before {operator}{{@cut}}, or declare "
        f"the shape of {value!r} in the file (value_info).",
    )
