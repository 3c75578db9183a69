"""A user's model as the stages want it."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortpipe.graph.batch import name_batch
from ortpipe.graph.check import finish
from ortpipe.graph.serial import lowered
from ortpipe.stages.convert.standardize import standardize


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in an opset that the runtime loads, in standard operators, its batch dimension named N.

    Raises:
        ModelError: the model is not valid, or has no form in such an opset.
    """
    own = ir.from_proto(lowered(model))
    name_batch(own.graph)
    standardize(own.graph)
    return finish(own)
