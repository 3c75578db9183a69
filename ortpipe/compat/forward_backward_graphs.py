"""The gradient graph of a model, split where the backward pass begins."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ortpipe.compat.models import artifact_of, prepared, reaching, trained_by_default
from ortpipe.errors import TrainError
from ortpipe.graph import query
from ortpipe.graph.check import finish
from ortpipe.graph.edit import keep_outputs, part_between
from ortpipe.graph.modes import to_inference
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive


@dataclass(frozen=True)
class Graphs:
    """One function in its graphs; the weights are inputs of each."""

    inputs: tuple[str, ...]  # the data inputs, in the order of a batch
    weights: tuple[str, ...]  # the trained initializers, behind them
    outputs: tuple[str, ...]  # what forward returns
    saved: tuple[str, ...]  # what forward computes for backward alone
    cotangents: dict[str, str]  # float output → the input of its gradient
    gradients: dict[str, str]  # input or weight → its gradient; without integers and what no output depends on
    whole: onnx.ModelProto  # inputs and cotangents → outputs and gradients
    forward: onnx.ModelProto  # inputs → outputs and saved
    backward: onnx.ModelProto  # saved, inputs and cotangents → gradients
    evaluation: onnx.ModelProto  # inputs → outputs, in inference mode


def build(onx: onnx.ModelProto, weights: Sequence[str] | None, inputs: Sequence[str], outputs: Sequence[str]) -> Graphs:
    """Differentiate the float outputs, and cut the graph where their gradients come in.

    Raises:
        TrainError: nothing to train.
        DeriveError: an operator on the way has no gradient.
    """
    model = prepared(onx)
    keep_outputs(model, outputs)
    graph = model.graph
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS]
    if not floats:
        raise TrainError(
            "At least one output must be a float: only floats have gradients.",
            got="no float output",
            fix="Name other output_names.",
        )
    if weights is None:
        weights = trained_by_default(graph, floats)
    if not weights:
        names = ", ".join(str(v.name) for v in graph.initializers.values() if v.dtype in query.FLOATS)
        got = f"none of {names or 'no float initializer'}"
        raise TrainError("At least one weight must be trained.", got=got, fix="Name weights_to_train.")
    config = DeriveConfig(
        parameters=tuple(weights),
        output=tuple(str(o.name) for o in floats),
        inputs=tuple(reaching(graph, [i for i in graph.inputs if i.name in inputs], floats)),
    )
    derived = derive(artifact_of(model, weights, inputs=tuple(inputs)), config)
    facts, whole = derived.facts, derived.ir_model()
    gradients = {**facts.input_gradients, **facts.gradients}
    others = {*inputs, *weights, *facts.statistics}
    cotangents = [str(i.name) for i in whole.graph.inputs if i.name not in others]
    _set_inputs(whole.graph, {*inputs, *weights, *cotangents})
    read, saved = _border(whole.graph, cotangents, list(gradients.values()))
    evaluation = _part(whole, outputs)
    to_inference(evaluation)
    return Graphs(
        inputs=tuple(inputs),
        weights=tuple(weights),
        outputs=tuple(outputs),
        saved=tuple(saved),
        cotangents=dict(zip(config.output or (), cotangents, strict=True)),
        gradients=gradients,
        whole=finish(_part(whole, [*outputs, *gradients.values()])),
        forward=finish(_part(whole, [*dict.fromkeys([*outputs, *saved])])),
        backward=finish(part_between(whole, [*saved, *read, *cotangents], list(gradients.values()))),
        evaluation=finish(evaluation),
    )


def _set_inputs(graph: ir.Graph, names: set[str]) -> None:
    """Leave a graph these inputs, without values of their own; other inputs become constants."""
    graph.inputs[:] = [i for i in graph.inputs if i.name in names]
    for name in names & graph.initializers.keys():
        del graph.initializers[name]


def _part(model: ir.Model, outputs: Sequence[str]) -> ir.Model:
    """Return a copy of what computes these outputs."""
    part = model.clone()
    keep_outputs(part, outputs)
    return part


def _border(graph: ir.Graph, cotangents: Sequence[str], gradients: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what the backward pass reads from in front of it: inputs, and what the forward pass computes."""
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
