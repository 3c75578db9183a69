"""derive's engines on ModelProtos, which tests write as ONNX text."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ortpipe.autodiff import expand
from ortpipe.graph.core.check import finish, inferred
from ortpipe.graph.importing.opsets import at_opset
from ortpipe.stages.derive.engines.native import Native
from ortpipe.stages.derive.engines.ort import Ort


def native(
    model: onnx.ModelProto,
    loss: str,
    parameters: Sequence[str],
    inputs: Sequence[str],
    engine: Native | Ort | None = None,
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the finished model of an engine (ortpipe's own by default), and the gradient's name of each name.

    Models of opsets below 18 are converted up first, as `convert` and `ortpipe.gradient` do.
    """
    derived, gradients = (engine or Native())(ir.from_proto(inferred(at_opset(model))), loss, parameters, inputs)
    return finish(derived), gradients


def ort(
    model: onnx.ModelProto, loss: str, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the same of the training build's builder."""
    return native(model, loss, parameters, inputs, Ort())


def expanded(model: onnx.ModelProto, targets: Sequence[str] = ()) -> onnx.ModelProto:
    """Return the model with its functions and loops written out."""
    own = ir.from_proto(inferred(model))
    return finish(expand.expanded(own, [str(output.name) for output in own.graph.outputs], targets))
