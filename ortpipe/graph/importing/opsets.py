"""Convert a model to another opset: onnx's version converter, and the operators that it converts wrongly or not at all.

Its errors were found by running each operator of opsets 7 to 12 before and after. Before opset 11, Resize was
asymmetric and rounded down (up where it shrinks), which no attribute says. Before 13, a Hardmax of several axes was one
of a matrix. Before 9, BatchNormalization could have statistics for every position.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter
from onnx_ir import Node, Value
from onnx_ir.passes.common import NameFixPass

from ortpipe.errors import ModelError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import FAILURES, inferred
from ortpipe.graph.core.inference import parsed
from ortpipe.graph.core.protos import all_nodes
from ortpipe.graph.core.query import called, constant
from ortpipe.graph.core.rewrite import Rewrite, rewrite
from ortpipe.graph.core.types import OPSET
from ortpipe.graph.importing.functions import is_function, with_bodies, write_defaults
from ortpipe.graph.importing.sizes import fold_sizes

LIFTED = 18  # the first opset in which most reductions take axes as an input
SPECTRAL = {"DFT", "STFT"}  # the axis of DFT, which gradients of both have, is an input from opset 20 on
SET_SHAPE = "Set the sizes of the inputs{@sizes}."


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=OPSET)


def at_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model at opset LIFTED if it is older, at OPSET if it is newer or spectral, else the same model.

    Raises:
        ModelError: an operator has no equivalent there.
    """
    version = opset_of(model)
    target = LIFTED if SPECTRAL.isdisjoint(node.op_type for node in all_nodes(model.graph)) else OPSET
    if target <= version <= OPSET:
        return model
    try:
        if version > OPSET:
            return version_converter.convert_version(_without_newer(model), OPSET)
        return _lifted(model, version, target)
    except ModelError:
        raise
    except FAILURES as error:
        raise ModelError(
            f"The training runtime runs opset {LIFTED} to {OPSET}; a model must have an equivalent there.",
            got=f"opset {version}: {str(error).strip().splitlines()[-1]}",
            fix="Leave the named operator out of the model, or write it in older operators.",
        ) from error


def _without_newer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with operators newer than OPSET in older ones: by NEW, or by ONNX's function bodies."""
    used = {node.op_type for node in all_nodes(model.graph) if node.domain == ""}
    newer = {op_type for op_type in used if op_type in NEW or not onnx.defs.has(op_type, OPSET, "")}
    if not newer:
        return model
    if "GroupNormalization" in used:  # onnx infers no type for its output, and a body needs its inputs' types
        model = with_bodies(model, ["GroupNormalization"])
    graph_model = parsed(inferred(model))
    for value in (output for node in graph_model.graph.all_nodes() for output in node.outputs):
        if value.shape is not None and 0 in value.shape:  # onnx infers 0 for unknown sizes of an Attention
            value.shape = None
    rewrite(graph_model.graph, NEW, nodes=list(graph_model.graph.all_nodes()))
    write_defaults(graph_model, newer)
    graph_model = parsed(with_bodies(ir.to_proto(graph_model), newer))
    for node in graph_model.graph.all_nodes():
        for x in node.inputs:
            if x is not None and node.op_type in newer and is_function(node):  # its body needs sizes
                _known_rank(node, x)
    fold_sizes(graph_model, deep=True)  # bodies compute sizes, which inference does not follow
    plain = ir.to_proto(graph_model)
    declared_names = {d.dim_param for v in (*model.graph.input, *model.graph.value_info) for d in _dims(v)}
    for dim in (d for v in plain.graph.value_info for d in _dims(v)):
        if dim.dim_param not in declared_names:  # inference's name for a size that may be known by now
            dim.ClearField("dim_param")
    return plain


def _dims(value: onnx.ValueInfoProto) -> Iterable[onnx.TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim


def _lifted(model: onnx.ModelProto, version: int, target: int) -> onnx.ModelProto:
    if version < 13 and any(node.op_type in OLD for node in all_nodes(model.graph)):
        graph_model = parsed(inferred(model))
        rewrite(graph_model.graph, OLD, nodes=graph_model.graph.all_nodes())
        model = ir.to_proto(graph_model)
    sized = {node.output[0] for node in all_nodes(model.graph) if node.op_type in ("Upsample", "Resize")}
    if target == OPSET:  # from 21 on its scale is by channel, which the converter ignores
        model = with_bodies(model, ["GroupNormalization"])
    model = version_converter.convert_version(model, target)
    names = [name for node in all_nodes(model.graph) for name in node.output if name]
    if len(names) > len(set(names)):  # the converter numbers new values anew in each body
        model = ir.to_proto(NameFixPass()(parsed(model)).model)
    if version < 11 and sized:
        graph_model = parsed(model)
        for node in graph_model.graph.all_nodes():
            if node.op_type == "Resize" and node.outputs[0].name in sized:
                _as_before_11(node)
        model = ir.to_proto(graph_model)
    return model


def _as_before_11(resize: Node) -> None:
    """Write out the attributes of a Resize that were implied before opset 11."""
    scales = constant(resize.inputs[2])
    shrinks = scales is not None and scales.min() < 1
    if scales is not None and shrinks and scales.max() > 1 and resize.attributes.get_string("mode") != "linear":
        raise ModelError(
            "A Resize of an opset before 11 must either shrink or enlarge.",
            got=f"{resize.outputs[0].name!r}: scales {scales.tolist()}",
            fix="Write it as two Resize nodes.",
        )
    values = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil" if shrinks else "floor"}
    resize.attributes.update({name: ir.AttrString(name, value) for name, value in values.items()})


def _batch_normalization(op: Builder, node: Node) -> list[Value] | None:
    """BatchNormalization with statistics for every position: scale · (x − mean) / √(variance + epsilon) + bias."""
    if node.attributes.get_int("spatial", 1):
        return None
    x, scale, bias, mean, variance = (v for v in node.inputs if v is not None)
    deviation: Any = op.Sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return [(x - mean) / deviation * scale + bias]


def _hardmax(op: Builder, node: Node) -> list[Value]:
    """Hardmax of a matrix whose rows are the axes before `axis`."""
    [x] = node.inputs
    return [op.Reshape(op.Hardmax(op.Flatten(x, axis=node.attributes.get_int("axis", 1)), axis=1), op.Shape(x))]


def _known_rank(node: Node, x: Value) -> int:
    if x.shape is None:
        rule = "The number of dimensions of every output must be known."
        raise ModelError(rule, got=f"unknown for {x.name!r}, which {called(node)} reads", fix=SET_SHAPE)
    return x.shape.rank()


def _global_max_pool(op: Builder, node: Node) -> list[Value]:
    """GlobalMaxPool, which the version converter cannot lower: the largest entry over axes 2, 3 …"""
    [x] = node.inputs
    assert x is not None
    return [op.ReduceMax(x, range(2, _known_rank(node, x)), keepdims=1)]


def _tensor_scatter(op: Builder, node: Node) -> list[Value]:
    """TensorScatter: along `axis`, row b of the update goes to positions write_indices[b], write_indices[b] + 1 …"""
    cache, update, starts = (*node.inputs, None)[:3]
    assert cache is not None and update is not None
    rank = _known_rank(node, cache)
    axis = node.attributes.get_int("axis", -2) % rank
    size, count = (op.Gather(op.Shape(v), op.const(np.int64(axis)), axis=0) for v in (cache, update))
    places: Any = op.Reshape(op.Range(0, count, 1), [-1 if i == axis else 1 for i in range(rank)])
    if starts is not None:
        places = places + op.Reshape(starts, [-1] + [1] * (rank - 1))
    if node.attributes.get_string("mode", "linear") == "circular":
        places = op.Mod(places, size)
    return [op.ScatterElements(cache, op.Expand(places, op.Shape(update)), update, axis=axis)]


NEW: dict[str, Rewrite] = {"GlobalMaxPool": _global_max_pool, "TensorScatter": _tensor_scatter}
OLD: dict[str, Rewrite] = {"BatchNormalization": _batch_normalization, "Hardmax": _hardmax}
