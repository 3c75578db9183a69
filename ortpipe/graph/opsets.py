"""From one opset of ONNX to another: onnx's version converter, and what it forgets or cannot do.

What it does wrong was found by running each operator of opsets 7 to 12 before and after: Resize was asymmetric and
rounded down (shrinking, up) before opset 11 and says nothing of it, a Hardmax of several axes was one of a matrix,
BatchNormalization could have statistics for every place.
"""

from typing import Any

import onnx
import onnx_ir as ir
from onnx import version_converter
from onnx_ir import Node, Value

from ortpipe.errors import ModelError
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import inferred, parsed
from ortpipe.graph.functions import with_bodies, write_defaults
from ortpipe.graph.query import all_nodes, constant
from ortpipe.graph.rewrite import Rewrite, rewrite
from ortpipe.graph.serial import OPSET

LIFTED = 18  # from here on reductions take their axes alike, and there is LayerNormalization
FAILURES = (RuntimeError, onnx.shape_inference.InferenceError)


def at_opset(model: onnx.ModelProto, version: int, oldest: int) -> onnx.ModelProto:
    """Return a model of that opset at LIFTED if it is older than `oldest`, at OPSET if newer than that.

    Raises:
        ModelError: an operator has no equal there.
    """
    for node in all_nodes(model.graph):
        if node.op_type == "MeanVarianceNormalization" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))  # its function body does not know them
    if oldest <= version <= OPSET:
        return model
    try:
        if version > OPSET:
            return version_converter.convert_version(_without_newer(model), OPSET)
        return _lifted(model, version)
    except ModelError:
        raise
    except FAILURES as error:
        raise ModelError(
            f"The training runtime runs opset {LIFTED} to {OPSET}; a model at another opset must have an equal there.",
            got=f"opset {version}: {str(error).strip().splitlines()[-1]}",
            fix="Leave the named operator out of the model, or write it in older operators.",
        ) from error


def _without_newer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the operators that OPSET does not know written as ONNX's function bodies."""
    newer = {node.op_type for node in all_nodes(model.graph) if node.domain == "" and not _is_known(node.op_type)}
    if not newer:
        return model
    own = parsed(inferred(model))
    write_defaults(own)
    return with_bodies(ir.to_proto(own), newer)


def _is_known(op_type: str) -> bool:
    try:
        onnx.defs.get_schema(op_type, OPSET, "")
    except onnx.defs.SchemaError:
        return False
    return True


def _lifted(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    if version < 13 and any(node.op_type in OLD for node in all_nodes(model.graph)):
        own = parsed(inferred(model))
        rewrite(own.graph, OLD, nodes=own.graph.all_nodes())
        model = ir.to_proto(own)
    sized = {node.output[0] for node in all_nodes(model.graph) if node.op_type in ("Upsample", "Resize")}
    model = version_converter.convert_version(model, LIFTED)
    if version < 11 and sized:
        own = parsed(model)
        for node in own.graph.all_nodes():
            if node.op_type == "Resize" and node.outputs[0].name in sized:
                _as_before_11(node)
        model = ir.to_proto(own)
    return model


def _as_before_11(resize: Node) -> None:
    """Say in a Resize what was a matter of course before opset 11."""
    scales = constant(resize.inputs[2])
    shrinks = scales is not None and scales.min() < 1
    if scales is not None and shrinks and scales.max() > 1 and resize.attributes.get_string("mode") != "linear":
        raise ModelError(
            "A Resize of an opset before 11 shrinks, or enlarges.",
            got=f"{resize.outputs[0].name!r}: scales {scales.tolist()}",
            fix="Write it as two.",
        )
    values = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil" if shrinks else "floor"}
    resize.attributes.update({name: ir.AttrString(name, value) for name, value in values.items()})


def _batch_normalization(op: Builder, node: Node) -> list[Value] | None:
    """BatchNormalization with statistics for every place: scale · (x − mean) / √(variance + epsilon) + bias."""
    if node.attributes.get_int("spatial", 1):
        return None
    x, scale, bias, mean, variance = (v for v in node.inputs if v is not None)
    deviation: Any = op.Sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return [(x - mean) / deviation * scale + bias]


def _hardmax(op: Builder, node: Node) -> list[Value]:
    """Hardmax of a matrix: the axes before `axis` are its rows."""
    [x] = node.inputs
    return [op.Reshape(op.Hardmax(op.Flatten(x, axis=node.attributes.get_int("axis", 1)), axis=1), op.Shape(x))]


OLD: dict[str, Rewrite] = {"BatchNormalization": _batch_normalization, "Hardmax": _hardmax}
