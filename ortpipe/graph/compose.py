"""The functions of `edit` on protos, until nothing calls them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph import edit
from ortpipe.graph.check import finish


def extract(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """See its counterpart."""
    own = ir.from_proto(model)
    edit.keep_outputs(own, outputs)
    return finish(own)


def between(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """See its counterpart."""
    return finish(edit.part_between(ir.from_proto(model), inputs, outputs))


def graft(model: onnx.ModelProto, source: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """See its counterpart."""
    own = ir.from_proto(model)
    edit.add_outputs(own, ir.from_proto(source), outputs)
    return finish(own)


def with_named_dimensions(model: onnx.ModelProto) -> onnx.ModelProto:
    """See its counterpart."""
    own = ir.from_proto(model)
    edit.name_dimensions(own)
    return ir.to_proto(own)


def with_parameters(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """See its counterpart."""
    own = ir.from_proto(model)
    edit.set_initializers(own, values)
    return ir.to_proto(own)


def opened(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """See its counterpart."""
    own = ir.from_proto(model)
    edit.open_initializers(own, names)
    return ir.to_proto(own)
