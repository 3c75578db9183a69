"""The training build's gradient builder, with its own operators rewritten in standard ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.check import finish
from ortpipe.graph.compose import extract, graft
from ortpipe.graph.rewrite import rewrite
from ortpipe.runtime.gradient_builder import gradient_model
from ortpipe.settings import Config
from ortpipe.stages.derive.engines.ort_lowering import DOMAIN, RULES, without_yield
from ortpipe.stages.derive.engines.ort_operators import BODIES, REWRITES, between, check_differentiable
from ortpipe.stages.derive.expand import with_bodies


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
        others = [o.name for o in model.graph.output if o.name != loss]  # running statistics
        model = differentiable(model, [loss], [*parameters, *inputs])
        built, gradients = with_yield(extract(model, [loss]), parameters, inputs)
        result = ir.from_proto(onnx.shape_inference.infer_shapes(built))  # the builder drops some types
        without_yield(result.graph)
        rewrite(result.graph, RULES, DOMAIN)
        finished = finish(result)
        return graft(finished, model, others) if others else finished, gradients


def differentiable(model: onnx.ModelProto, outputs: Sequence[str], sources: Sequence[str]) -> onnx.ModelProto:
    """Return the model with what the builder cannot do between the sources and the outputs written otherwise.

    Raises:
        DeriveError: an operator on the way can be written in no way that the builder does right.
    """
    own = ir.from_proto(with_bodies(model, BODIES))
    for output in outputs:
        rewrite(own.graph, REWRITES, nodes=between(own.graph, output, sources))
    own = ir.from_proto(finish(own))
    for output in outputs:
        check_differentiable(own.graph, output, sources)
    return ir.to_proto(own)


def with_yield(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph of a model's outputs (forward, YieldOp, backward), and each name's gradient.

    Raises:
        DeriveError: an operator on the way has no gradient; in the builder's own words, where the tables lack it.
    """
    own = ir.from_proto(model)
    names, renamed = Names(used_names(own.graph)), dict[str, str]()
    for name, value in ir.convenience.create_value_mapping(own.graph).items():
        if "_grad" in name:  # the builder calls its gradients so without asking
            value.name = renamed[name] = names.fresh(name.replace("_grad", "_Grad"))
    for node in list(own.graph):  # it dies of a node that reads one input or initializer twice
        for i, value in enumerate(node.inputs):
            if value is not None and value.producer() is None and value in node.inputs[:i]:
                copy = Builder(own.graph, f"{value.name}/again", before=node, names=names).Identity(value)
                copy.type, copy.shape = value.type, value.shape
                node.replace_input_with(i, copy)
    try:
        built, gradients = gradient_model(
            ir.to_proto(own), *([renamed.get(name, name) for name in group] for group in (parameters, inputs))
        )
    except DeriveError as error:
        raise DeriveError(
            "The ort engine must be able to differentiate the model.",
            got=error,
            fix="Choose derive=native, or simplify the model.",
        ) from error
    own = ir.from_proto(built)
    values, back = ir.convenience.create_value_mapping(own.graph), {new: old for old, new in renamed.items()}
    results = {back.get(name, name): values[gradient] for name, gradient in gradients.items()}
    names = Names({*used_names(own.graph), *renamed})
    for name, value in values.items():
        value.name = back.get(name) or (names.fresh(name) if name in renamed else name)
    return ir.to_proto(own), {name: str(value.name) for name, value in results.items()}
