"""Turn a graph in construction into a valid model: dead nodes removed, shapes inferred, checked by onnx.checker."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ortpipe.errors import ModelError
from ortpipe.graph.core.apart import LARGE_WEIGHT, TYPES, is_heavy, without_weights
from ortpipe.graph.core.builder import gc_paused
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.query import graphs, subgraphs

FAILURES = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError)
FIX = "Fix the model where the message points, or end the graph before that node{@cut}."
LONGEST_VECTOR = 2**16  # entries of a vector whose values shape inference may propagate
# Operators whose outputs have no longer axis than their inputs have (Scan: if that holds in its body, too).
NO_LONGER_AXES = having("unary", "broadcasts", "predicate", "entrywise", "reduces", "like_first", "short")


def finish(model: ir.Model) -> onnx.ModelProto:
    """Return the model without dead nodes, with inferred shapes, once onnx.checker accepts it (else a ModelError)."""
    clean(model)
    return checked(ir.to_proto(model))


@gc_paused()
def finish_apart(
    model: ir.Model, *, deep: bool = False, shaped: bool = False
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the same as `finish`, with large float initializers as dimensions only, and their arrays by name.

    The cost of a model then grows with its nodes, not with its weights, which no check reads. `shaped` means that the
    values of the main graph have shapes by inference, or none.
    """
    clean(model)
    proto, weights = proto_apart(model, deep=deep)
    return checked(proto, apart=bool(weights), shaped=shaped), weights


def proto_apart(model: ir.Model, *, deep: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model as protobuf without the values of its large weights, and these; `deep` includes inner graphs'."""
    inner = [graph for node in model.graph.all_nodes() for graph in subgraphs(node)] if deep else []
    large = {
        value: tensor
        for graph in (model.graph, *inner)
        for value in graph.initializers.values()
        if (tensor := value.const_value) is not None and tensor.dtype.value in TYPES and tensor.size >= LARGE_WEIGHT
    }
    for value, tensor in large.items():
        stub = onnx.TensorProto(name=value.name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
        value.const_value = ir.serde.TensorProtoTensor(stub)
    try:
        proto = ir.to_proto(model)
    finally:
        for value, tensor in large.items():
            value.const_value = tensor
    return proto, {str(value.name): tensor.numpy() for value, tensor in large.items()}


def clean(model: ir.Model, *, loops: bool = False) -> None:
    """Remove nodes and initializers that nothing reads; with `loops` also such outputs of Loops."""
    kinds = ("Scan", "Loop") if loops else ("Scan",)
    passes.RemoveUnusedNodesPass()(model)
    if sum(_remove_unread_outputs(node) for node in model.graph.all_nodes() if node.op_type in kinds):
        passes.RemoveUnusedNodesPass()(model)


def infer(model: ir.Model) -> None:
    """Set the types and shapes that inference finds."""
    for node in model.graph.all_nodes():
        if node.op_type == "STFT" and node.outputs[0].shape is None:  # onnx's inference gives up on unknown sizes
            frames, signal = node.outputs[0], node.inputs[0]
            if signal is not None and signal.type is not None:
                frames.type, frames.shape = signal.type, ir.Shape([None, None, None, 2])
    proto, _ = proto_apart(model, deep=True)
    _take_shapes(model.graph, _inferred(without_weights(proto) if is_heavy(proto) else proto).graph)


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


def _remove_unread_outputs(node: ir.Node) -> bool:
    """Remove a Scan's or Loop's last outputs that nothing reads (a removed gradient did); return whether any."""
    if "scan_output_axes" in node.attributes or "scan_output_directions" in node.attributes:
        return False
    body, before = node.attributes["body"].as_graph(), len(node.outputs)
    not_carried = 2 if node.op_type == "Loop" else node.attributes["num_scan_inputs"].as_int()
    first = max(len(node.inputs) - not_carried, 1)
    while len(node.outputs) > first and not node.outputs[-1].uses() and not node.outputs[-1].is_graph_output():
        node.resize_outputs(len(node.outputs) - 1)
        body.outputs.pop()
    return len(node.outputs) < before


def checked(model: onnx.ModelProto, *, apart: bool = False, shaped: bool = False) -> onnx.ModelProto:
    """Return the model with shapes inferred, once onnx.checker (full check) accepts it.

    `apart` means that the model lacks the values of its large initializers; `shaped` as for `finish_apart`.
    """
    try:
        model = inferred(model, shaped=shaped)
        onnx.checker.check_model(without_weights(model) if apart or is_heavy(model) else model, full_check=True)
    except FAILURES as error:
        if any(not _ranked(output) for output in model.graph.output):
            raise _unknown_rank(model) from error
        raise _invalid(error) from error
    return model


def parsed(model: onnx.ModelProto) -> ir.Model:
    """Return the model as an onnx_ir.Model; raise ModelError where it cannot be read."""
    try:
        return ir.from_proto(model)
    except ir.serde.SerdeError as error:
        causes = [str(e).strip() for e in (error, error.__cause__) if e is not None]
        raise ModelError("A model must be readable.", got=causes[-1], fix=FIX) from error


def _invalid(error: Exception) -> ModelError:
    return ModelError("A model must pass onnx.checker with full check.", got=str(error).strip(), fix=FIX)


def inferred(model: onnx.ModelProto, *, shaped: bool = False) -> onnx.ModelProto:
    """Return the model with inferred shapes, also those that follow from the output of Shape.

    That takes propagating the values of all vectors; where one is long, no values are propagated.
    """
    if is_heavy(model):
        return _with_weights(_inferred(without_weights(model), shaped=shaped), model)
    return _inferred(model, shaped=shaped)


def _inferred(model: onnx.ModelProto, *, shaped: bool = False) -> onnx.ModelProto:
    try:
        if model.functions or _may_be_long(model.graph, shaped=shaped):
            plain = onnx.shape_inference.infer_shapes(model)
            shapes = [v.type.tensor_type.shape.dim for v in (*plain.graph.input, *plain.graph.value_info)]
            if any(len(dims) == 1 and dims[0].dim_value > LONGEST_VECTOR for dims in shapes):
                return plain
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except FAILURES as error:
        raise _invalid(error) from error


def _with_weights(light: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """Put the initializers of `model` back into `light`, which `without_weights` made of it."""
    inputs = {i.name for i in model.graph.input}
    declared = [i for i in light.graph.input if i.name in inputs]
    del light.graph.input[:]
    light.graph.input.extend(declared)
    for graph, heavy in zip(graphs(light.graph), graphs(model.graph), strict=True):
        del graph.initializer[:]
        graph.initializer.extend(heavy.initializer)
    return light


def _may_be_long(graph: onnx.GraphProto, *, shaped: bool = False) -> bool:
    """Return whether a vector may have more than LONGEST_VECTOR entries: an axis is longer, or may become so.

    If inference has `shaped` the values, their axes are as long as they say.
    """
    values, shapes = (*graph.input, *graph.value_info, *graph.output), set()
    axes = [d for tensor in graph.initializer for d in tensor.dims]
    axes += [d.dim_value for value in values for d in value.type.tensor_type.shape.dim]
    with_shapes = {"", *(value.name for value in values if shaped and value.type.tensor_type.HasField("shape"))}
    for node in graph.node:
        if node.op_type == "Shape" or (node.op_type == "Constant" and _is_short_shape(node)):
            shapes.update(node.output)
        is_short = node.op_type in NO_LONGER_AXES or (node.op_type == "ConstantOfShape" and node.input[0] in shapes)
        if (node.domain or not is_short) and not with_shapes.issuperset(node.output):
            return True
        for attribute in node.attribute:
            if attribute.HasField("g") and _may_be_long(attribute.g):
                return True
            axes += attribute.t.dims
            axes += [len(numbers) for numbers in (attribute.ints, attribute.floats, attribute.strings)]
    return max(axes, default=0) > LONGEST_VECTOR


def _is_short_shape(constant: onnx.NodeProto) -> bool:
    dims = [onnx.numpy_helper.to_array(a.t) for a in constant.attribute if a.t.data_type == onnx.TensorProto.INT64]
    return all(d.size <= LONGEST_VECTOR and d.max(initial=0) <= LONGEST_VECTOR for d in dims) and bool(dims)


def _ranked(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.HasField("shape")


def _unknown_rank(model: onnx.ModelProto) -> ModelError:
    """Return the error that names the first node that leaves an output's number of dimensions unknown."""
    graph = model.graph
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
