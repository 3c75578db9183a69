"""From the graph we build in to the model we promise: cleaned, shaped and checked."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ortpipe.errors import ModelError
from ortpipe.graph.serial import LARGE, on_disk


def finish(model: ir.Model) -> onnx.ModelProto:
    """Return the model as a ModelProto without dead nodes, with inferred shapes, after a full check.

    Raises:
        ModelError: onnx.checker refuses it.
    """
    passes.RemoveUnusedNodesPass()(model)
    if sum(_without_unread_steps(node) for node in model.graph.all_nodes()):
        passes.RemoveUnusedNodesPass()(model)
    return checked(ir.to_proto(model))


def _without_unread_steps(node: ir.Node) -> bool:
    """Take off a Scan's last outputs that nobody reads: what a gradient had asked for, where it is gone."""
    if node.op_type != "Scan" or "scan_output_axes" in node.attributes or "scan_output_directions" in node.attributes:
        return False
    body, before = node.attributes["body"].as_graph(), len(node.outputs)
    first = max(len(node.inputs) - node.attributes["num_scan_inputs"].as_int(), 1)
    while len(node.outputs) > first and not node.outputs[-1].uses() and not node.outputs[-1].is_graph_output():
        node.resize_outputs(len(node.outputs) - 1)
        body.outputs.pop()
    return len(node.outputs) < before


def checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with shapes inferred, once onnx.checker (full check) accepts it."""
    try:
        if model.ByteSize() > LARGE:
            with on_disk(model) as path:
                onnx.checker.check_model(path, full_check=True)
            return model
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            "A model must pass onnx.checker with full check.",
            got=str(error).strip(),
            fix="Mend the model where the message points, or export it again.",
        ) from error
    return model
