"""The gradient graph of a model, split into a forward and a backward graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ortpipe import DeriveConfig, derive
from ortpipe.compat.models import artifact_of, prepared, reaching, trained_by_default
from ortpipe.errors import TrainError
from ortpipe.graph import finish, keep_outputs, query, to_inference


@dataclass(frozen=True)
class Graphs:
    """The graphs of one function; the weights are inputs of each."""

    inputs: tuple[str, ...]  # the data inputs, in the order of a batch
    weights: tuple[str, ...]  # the trained initializers, after the data inputs
    outputs: tuple[str, ...]  # the outputs of forward
    saved: tuple[str, ...]  # values that forward computes only for backward
    cotangents: dict[str, str]  # float output → the input of its gradient
    gradients: dict[str, str]  # input or weight → its gradient; without integers and values that no output depends on
    full: onnx.ModelProto  # inputs and cotangents → outputs and gradients
    forward: onnx.ModelProto  # inputs → outputs and saved
    backward: onnx.ModelProto  # saved, inputs and cotangents → gradients
    evaluation: onnx.ModelProto  # inputs → outputs, in inference mode


def build(onx: onnx.ModelProto, weights: Sequence[str] | None, inputs: Sequence[str], outputs: Sequence[str]) -> Graphs:
    """Differentiate the float outputs, and split the graph where their gradients enter.

    Raises:
        TrainError: there is nothing to train.
        DeriveError: an operator has no gradient.
    """
    model = prepared(onx)
    keep_outputs(model, outputs)
    graph = model.graph
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS]
    if not floats:
        rule, fix = "At least one output must be a float: only floats have gradients.", "Name other output_names."
        raise TrainError(rule, got="no float output", fix=fix)
    if weights is None:
        weights = trained_by_default(graph, floats)
    if not weights:
        names = ", ".join(str(v.name) for v in graph.initializers.values() if v.dtype in query.FLOATS)
        actual = f"none of {names or 'no float initializer'}"
        raise TrainError("At least one weight must be trained.", got=actual, fix="Name weights_to_train.")
    config = DeriveConfig(
        parameters=tuple(weights),
        output=tuple(str(o.name) for o in floats),
        inputs=tuple(reaching(graph, [i for i in graph.inputs if i.name in inputs], floats)),
    )
    derived = derive(artifact_of(model, weights, inputs=tuple(inputs)), config)
    facts, gradient_model = derived.facts, derived.ir_model()
    gradients = {**facts.input_gradients, **facts.gradients}
    data_and_weights = {*inputs, *weights, *facts.statistics}
    cotangents = [str(i.name) for i in gradient_model.graph.inputs if i.name not in data_and_weights]
    _set_inputs(gradient_model.graph, {*inputs, *weights, *cotangents})
    read, saved = _border(gradient_model.graph, cotangents, list(gradients.values()))
    evaluation = _part(gradient_model, outputs)
    to_inference(evaluation)
    return Graphs(
        inputs=tuple(inputs),
        weights=tuple(weights),
        outputs=tuple(outputs),
        saved=tuple(saved),
        cotangents=dict(zip(config.output or (), cotangents, strict=True)),
        gradients=gradients,
        full=finish(_part(gradient_model, [*outputs, *gradients.values()])),
        forward=finish(_part(gradient_model, [*dict.fromkeys([*outputs, *saved])])),
        backward=finish(_part_between(gradient_model, [*saved, *read, *cotangents], list(gradients.values()))),
        evaluation=finish(evaluation),
    )


def _set_inputs(graph: ir.Graph, names: set[str]) -> None:
    """Reduce a graph's inputs to these, without default values; other inputs become constants."""
    graph.inputs[:] = [i for i in graph.inputs if i.name in names]
    for name in names & graph.initializers.keys():
        del graph.initializers[name]


def _part(model: ir.Model, outputs: Sequence[str]) -> ir.Model:
    """Return a copy of the part that computes these outputs."""
    part = model.clone()
    keep_outputs(part, outputs)
    return part


def _border(graph: ir.Graph, cotangents: Sequence[str], gradients: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the values that the backward pass reads: inputs, and results of the forward pass."""
    backward: set[ir.Value] = {v for v in graph.inputs if v.name in cotangents}
    read: dict[ir.Value, None] = {}
    for node in graph:
        operands = [v for v in (*node.inputs, *query.captured(node)) if v is not None]
        if backward.intersection(operands):
            backward.update(node.outputs)
            read.update(dict.fromkeys(v for v in operands if v not in backward))
    read.update(dict.fromkeys(v for v in graph.outputs if v.name in gradients and v not in backward))
    computed = [v for v in read if (maker := v.producer()) is not None and maker.inputs]
    return [str(v.name) for v in read if v.is_graph_input()], [str(v.name) for v in computed]


def _part_between(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """Return the part of a model between `inputs`, which become its inputs, and `outputs`."""
    graph = ir.convenience.extract(model.graph, inputs, outputs)
    graph.opset_imports.update(model.graph.opset_imports)
    return ir.Model(graph, ir_version=model.ir_version)
