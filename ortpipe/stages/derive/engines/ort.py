"""The training build's gradient builder, with its own operators rewritten in standard ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortpipe.errors import DeriveError
from ortpipe.settings import Config

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Ort(Config):
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
        from ortpipe.graph.compose import extract, graft
        from ortpipe.stages.derive.engines.ort_limits import refuse_known_faults
        from ortpipe.stages.derive.engines.ort_lowering import lower, without_yield
        from ortpipe.stages.derive.engines.ort_rewrites import rewrite

        sources = [*parameters, *inputs]
        others = [o.name for o in model.graph.output if o.name != loss]  # running statistics
        model = rewrite(model, loss, sources)
        refuse_known_faults(model, loss, sources)
        built, gradients = with_yield(extract(model, [loss]), parameters, inputs)
        result = ir.from_proto(onnx.shape_inference.infer_shapes(built))  # the builder drops some types
        without_yield(result.graph)
        lower(result.graph)
        finished = finish(result)
        return graft(finished, model, others) if others else finished, gradients


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
        raise _explained(error) from error


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in a form that the builder survives.

    It calls gradients <value>_grad without asking, so values of that name make way; twice where a node reads one
    input or initializer twice, so the second time it reads a copy.
    """
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder, Names, used_names

    own = ir.from_proto(model)
    names = Names(used_names(own.graph))
    for node in list(own.graph):
        for value in node.outputs:
            if value.name and value.name.endswith("_grad") and not value.is_graph_output():
                value.name = names.fresh(f"{value.name}/forward")
        for i, value in enumerate(node.inputs):
            if value is not None and value.producer() is None and value in node.inputs[:i]:
                copy = Builder(own.graph, f"{value.name}/again", before=node, names=names).Identity(value)
                copy.type, copy.shape = value.type, value.shape
                node.replace_input_with(i, copy)
    return ir.to_proto(own)


def _explained(error: DeriveError) -> DeriveError:
    """Keep the builder's own words where the tables did not foresee what it refuses."""
    return DeriveError(
        "The ort engine must be able to differentiate the model.",
        got=error,
        fix="Choose derive=native, or simplify the model.",
    )
