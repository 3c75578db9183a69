"""derive's engines on ModelProtos, which tests write as ONNX text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ortpipe.autodiff import expand, with_gradients
from ortpipe.graph.core.check import finish, inferred
from ortpipe.graph.importing.opsets import at_opset

if TYPE_CHECKING:
    from ortpipe.stages.derive.engines import Engine


def native(
    model: onnx.ModelProto,
    loss: str,
    parameters: Sequence[str],
    inputs: Sequence[str],
    engine: Engine | None = None,
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the finished model of an engine (by default that of autodiff), and the gradient's name of each name.

    Models of opsets below 18 are converted up first, as `convert` and `ortpipe.gradient` do.
    """
    loss_model = ir.from_proto(inferred(at_opset(model)))
    if engine is None:
        derived, gradients = with_gradients(loss_model, loss, [*parameters, *inputs])
    else:
        derived, gradients = engine(loss_model, loss, parameters, inputs)
    return finish(derived), gradients


def ort(
    model: onnx.ModelProto, loss: str, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the same of the training build's builder."""
    from ortpipe.stages.derive.engines import ENGINES  # not at the top: autodiff's tests run without the stages

    return native(model, loss, parameters, inputs, ENGINES["ort"]())


def expanded(model: onnx.ModelProto, targets: Sequence[str] = ()) -> onnx.ModelProto:
    """Return the model with its functions and loops written out."""
    own = ir.from_proto(inferred(model))
    return finish(expand.expanded(own, [str(output.name) for output in own.graph.outputs], targets))
