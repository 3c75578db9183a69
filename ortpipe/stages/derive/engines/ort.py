"""The training build's gradient builder, with its own operators rewritten in standard ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.errors import DeriveError

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Ort:
    """onnxruntime-training's OrtModuleGraphBuilder (1.19.2, opset ≤ 21).

    Attributes:
        yield_op: give the builder's own graph, where YieldOp hands the outputs out and takes their gradients in: what
            a training agent runs, and nothing else does.
    """

    yield_op: bool = False

    def __call__(
        self, model: onnx.ModelProto, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[onnx.ModelProto, dict[str, str]]:
        """See `Engine`.

        Raises:
            DeriveError: an operator on the way has no gradient, or a wrong one; it is named with its node.
        """
        import onnx
        import onnx_ir as ir

        from ortpipe.graph.check import finish
        from ortpipe.stages.derive.engines.ort_limits import refuse_known_faults
        from ortpipe.stages.derive.engines.ort_lowering import lower, without_yield

        refuse_known_faults(model, loss, [*parameters, *inputs])
        built, gradients = with_yield(model, parameters, inputs)
        result = ir.from_proto(onnx.shape_inference.infer_shapes(built))  # the builder drops some types
        without_yield(result.graph)
        lower(result.graph)
        return finish(result), gradients


def with_yield(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph of a model's outputs (forward, YieldOp, backward), and each name's gradient.

    Raises:
        DeriveError: an operator on the way has no gradient.
    """
    from ortpipe.runtime.gradient_builder import gradient_model

    try:
        return gradient_model(_prepared(model), parameters, inputs)
    except DeriveError as error:
        raise _explained(error, model) from error


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in a form that the builder survives.

    It calls gradients <value>_grad without asking, so values of that name make way; it dies of a Transpose that
    does not spell out its perm.
    """
    import onnx_ir as ir

    from ortpipe.graph.builder import Names, used_names

    own = ir.from_proto(model)
    names = Names(used_names(own.graph))
    for node in own.graph:
        for value in node.outputs:
            if value.name and value.name.endswith("_grad") and not value.is_graph_output():
                value.name = names.fresh(f"{value.name}/forward")
        shape = node.inputs[0].shape if node.op_type == "Transpose" and node.inputs[0] is not None else None
        if shape is not None and "perm" not in node.attributes:
            node.attributes.add(ir.AttrInt64s("perm", list(range(shape.rank()))[::-1]))
    return ir.to_proto(own)


def _explained(error: DeriveError, model: onnx.ModelProto) -> DeriveError:
    """Name the operator and node behind "gradient builder has not been registered: Op"."""
    found = re.search(r"not been registered:?\s*(?:for\s+)?(\w+)", str(error))
    if found is None:
        return DeriveError(
            "The ort engine must be able to differentiate the model.", got=error, fix="Simplify the model."
        )
    kind = found.group(1)
    names = [node.name or node.output[0] for node in model.graph.node if node.op_type == kind]
    return DeriveError(
        "Every operator between the trained parameters and the loss needs a gradient.",
        got=f"{kind} at node {names[0]!r}, which the ort engine has no gradient for" if names else kind,
        fix="Export the model without this operator, or freeze the parameters in front of it (derive.frozen).",
    )
