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
    return checked(ir.to_proto(model))


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
