"""The training build's gradient builder, with its own operators rewritten in standard ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.autodiff.expand import with_bodies
from ortpipe.autodiff.walk import between, operands
from ortpipe.errors import DeriveError
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.check import clean, infer
from ortpipe.graph.edit import add_outputs, keep_outputs
from ortpipe.graph.rewrite import rewrite
from ortpipe.runtime.library import gradient_model
from ortpipe.settings import Config
from ortpipe.stages.derive.engines.ort_lowering import DOMAIN, RULES, without_yield
from ortpipe.stages.derive.engines.ort_operators import BODIES, REWRITES, check_differentiable


@dataclass(frozen=True)
class Ort(Config):
    """onnxruntime-training's OrtModuleGraphBuilder (1.19.2, opset ≤ 21).

    Attributes:
        yield_op: give the builder's own graph, where YieldOp hands the outputs out and takes their gradients in: what
            a training agent runs, and nothing else does.
    """

    yield_op: bool = False

    def __call__(
        self, model: ir.Model, loss: str, parameters: Sequence[str], inputs: Sequence[str]
    ) -> tuple[ir.Model, dict[str, str]]:
        """See `Engine`; an operator on the way without a gradient, or with a wrong one, is a DeriveError."""
        other_outputs = [str(o.name) for o in model.graph.outputs if o.name != loss]
        model = differentiable(model, [loss], [*parameters, *inputs])
        passed = between(model.graph, [loss], [*parameters, *inputs])
        read = {x.name for node in passed for x in operands(node) if x is not None}  # it fails on what is not
        part = model.clone()
        keep_outputs(part, [loss])
        taken = used_names(model.graph) - used_names(part.graph)
        targets = ([name for name in names if name in read] for names in (parameters, inputs))
        result, gradients = with_yield(part, *targets)
        infer(result)  # the builder drops some types
        without_yield(result.graph)
        rewrite(result.graph, RULES, DOMAIN)
        names, moved = Names(used_names(result.graph) | taken), dict[str, str]()
        for name, value in ir.convenience.create_value_mapping(result.graph).items():
            if name in taken:  # what the builder added makes way for the rest of the model
                value.name = moved[name] = names.fresh(name)
        add_outputs(result, model, other_outputs)
        return result, {name: moved.get(gradient, gradient) for name, gradient in gradients.items()}


def differentiable(model: ir.Model, outputs: Sequence[str], sources: Sequence[str]) -> ir.Model:
    """Return the model with what the builder cannot do written otherwise, or refused by name (DeriveError)."""
    model = with_bodies(model, BODIES)
    rewrite(model.graph, REWRITES, nodes=between(model.graph, outputs, sources))
    clean(model)
    infer(model)
    check_differentiable(model.graph, outputs, sources)
    return model


def with_yield(model: ir.Model, parameters: Sequence[str], inputs: Sequence[str]) -> tuple[ir.Model, dict[str, str]]:
    """Return the builder's graph of a model's outputs (forward, YieldOp, backward), and each name's gradient.

    Raises:
        DeriveError: an operator on the way has no gradient; in the builder's own words, where the tables lack it.
    """
    graph = model.graph
    names, renamed = Names(used_names(graph)), dict[str, str]()
    for name, value in ir.convenience.create_value_mapping(graph).items():
        if "_grad" in name:  # the builder calls its gradients so without asking
            value.name = renamed[name] = names.fresh(name.replace("_grad", "_Grad"))
    for node in list(graph):  # it dies of a node that reads one input or initializer twice
        for i, x in enumerate(node.inputs):
            if x is not None and x.producer() is None and x in node.inputs[:i]:
                copy = Builder(graph, f"{x.name}/again", before=node, names=names).Identity(x)
                copy.type, copy.shape = x.type, x.shape
                node.replace_input_with(i, copy)
    try:
        built, gradients = gradient_model(
            ir.to_proto(model), *([renamed.get(name, name) for name in group] for group in (parameters, inputs))
        )
    except DeriveError as error:
        raise DeriveError(
            "The ort engine must be able to differentiate the model.",
            got=error,
            fix="Choose derive=native, or simplify the model.",
        ) from error
    result = ir.from_proto(built)
    values, back = ir.convenience.create_value_mapping(result.graph), {new: old for old, new in renamed.items()}
    results = {back.get(name, name): values[gradient] for name, gradient in gradients.items()}
    names = Names({*used_names(result.graph), *renamed})
    for name, value in values.items():
        value.name = back.get(name) or (names.fresh(name) if name in renamed else name)
    return result, {name: str(value.name) for name, value in results.items()}
