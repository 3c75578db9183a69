"""Turn a graph in construction into a valid model: dead nodes removed, shapes inferred, checked by onnx.checker."""

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ortpipe.doors import later
from ortpipe.errors import ModelError
from ortpipe.graph.core.builder import gc_paused
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.protos import is_heavy, is_large_weight
from ortpipe.graph.core.query import subgraphs

if TYPE_CHECKING:  # for large models, and those that fail
    from ortpipe.graph.core.apart import with_weights, without_weights
    from ortpipe.graph.core.inference import rejected
else:
    later(__name__)

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
def finish_apart(model: ir.Model, *, deep: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the same as `finish`, with large float initializers as dimensions only, and their arrays by name.

    The cost of a model then grows with its nodes, not with its weights, which no check reads.
    """
    clean(model)
    proto, weights = proto_apart(model, deep=deep)
    return checked(proto, apart=bool(weights)), weights


def proto_apart(model: ir.Model, *, deep: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model as protobuf without the values of its large weights, and these; `deep` includes inner graphs'."""
    inner = [graph for node in model.graph.all_nodes() for graph in subgraphs(node)] if deep else []
    large = {
        value: tensor
        for graph in (model.graph, *inner)
        for value in graph.initializers.values()
        if (tensor := value.const_value) is not None and is_large_weight(tensor.dtype.value, tensor.size)
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


def checked(model: onnx.ModelProto, *, apart: bool = False) -> onnx.ModelProto:
    """Return the model with shapes inferred, once onnx.checker (full check) accepts it.

    `apart` means that the model lacks the values of its large initializers.
    """
    try:
        model = inferred(model)
        onnx.checker.check_model(without_weights(model) if apart or is_heavy(model) else model, full_check=True)
    except FAILURES as error:
        raise rejected(model, error) from error
    return model


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred shapes, also those that follow from the output of Shape.

    That takes propagating the values of all vectors; where one is long, no values are propagated.
    """
    try:
        if is_heavy(model):
            return with_weights(_inferred(without_weights(model)), model)
        return _inferred(model)
    except FAILURES as error:
        raise ModelError("A model must pass shape inference.", got=str(error).strip(), fix=FIX) from error


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.functions or _may_be_long(model.graph):
        plain = onnx.shape_inference.infer_shapes(model)
        shapes = [v.type.tensor_type.shape.dim for v in (*plain.graph.input, *plain.graph.value_info)]
        if any(len(dims) == 1 and dims[0].dim_value > LONGEST_VECTOR for dims in shapes):
            return plain
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _may_be_long(graph: onnx.GraphProto) -> bool:
    """Return whether a vector may have more than LONGEST_VECTOR entries: an axis is longer, or may become so.

    The outputs of nodes that have shapes are no longer than these.
    """
    values, shapes = (*graph.input, *graph.value_info, *graph.output), set()
    axes = [d for tensor in graph.initializer for d in tensor.dims]
    axes += [d.dim_value for value in values for d in value.type.tensor_type.shape.dim]
    with_shapes = {"", *(value.name for value in values if value.type.tensor_type.HasField("shape"))}
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
