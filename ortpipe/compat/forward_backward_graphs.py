"""The gradient graph of a model, cut in two where the backward pass begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ortpipe.compat.initializers import get_train_initializer
from ortpipe.compat.models import artifact_of, prepared, reaching
from ortpipe.errors import TrainError
from ortpipe.graph import query
from ortpipe.graph.compose import between, extract
from ortpipe.graph.modes import for_inference
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive


@dataclass(frozen=True)
class Graphs:
    """One function in its graphs; the weights are inputs of each.

    Attributes:
        inputs: the data inputs, in the order of a batch.
        weights: the trained initializers, behind them.
        outputs: what forward gives.
        kept: what forward computes for backward alone.
        seeds: float output → the input of its gradient.
        gradients: data input or weight → its gradient; without integers and what no output depends on.
        whole: inputs and seeds → outputs and gradients.
        forward: inputs → outputs and kept.
        backward: kept, inputs and seeds → gradients.
        evaluation: inputs → outputs, in inference mode.
    """

    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    kept: tuple[str, ...]
    seeds: dict[str, str]
    gradients: dict[str, str]
    whole: onnx.ModelProto
    forward: onnx.ModelProto
    backward: onnx.ModelProto
    evaluation: onnx.ModelProto


def build(
    model: onnx.ModelProto, weights: Sequence[str] | None, inputs: Sequence[str], outputs: Sequence[str]
) -> Graphs:
    """Differentiate the float outputs, and cut the graph where their gradients come in.

    Raises:
        TrainError: nothing to train.
        DeriveError: an operator on the way has no gradient.
    """
    source = extract(prepared(model), outputs)
    graph = ir.from_proto(source).graph
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS]
    if not floats:
        raise TrainError("A float output has a gradient.", got="no float output", fix="Name other output_names.")
    if weights is None:
        weights = list(get_train_initializer(source))
    if not weights:
        held = ", ".join(str(v.name) for v in graph.initializers.values() if v.dtype in query.FLOATS)
        got = f"none of {held or 'no float initializer'}"
        raise TrainError("At least one weight is trained.", got=got, fix="Name weights_to_train.")
    config = DeriveConfig(
        parameters=tuple(weights),
        output=tuple(str(o.name) for o in floats),
        inputs=tuple(reaching(graph, [i for i in graph.inputs if i.name in inputs], floats)),
    )
    derived = derive(artifact_of(source, weights, inputs=tuple(inputs)), config)
    gradients = {**derived.facts.input_gradients, **derived.facts.gradients}
    known = {*inputs, *weights, *derived.facts.statistics}
    fed = [i.name for i in derived.model.graph.input if i.name not in known]
    seeds = dict(zip([str(o.name) for o in floats], fed, strict=True))
    whole = _with_inputs(derived.model, {*inputs, *weights, *fed})
    early, kept = _border(whole, {*fed}, list(gradients.values()))
    return Graphs(
        inputs=tuple(inputs),
        weights=tuple(weights),
        outputs=tuple(outputs),
        kept=tuple(kept),
        seeds=seeds,
        gradients=gradients,
        whole=extract(whole, [*outputs, *gradients.values()]),
        forward=extract(whole, [*dict.fromkeys([*outputs, *kept])]),
        backward=between(whole, [*kept, *early, *fed], list(gradients.values())),
        evaluation=for_inference(extract(whole, outputs)),
    )


def _with_inputs(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """Return the model whose inputs are these, which have no values of their own; what else was one is constant."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    fed = [i for i in own.graph.input if i.name in names]
    constant = [t for t in own.graph.initializer if t.name not in names]
    del own.graph.input[:], own.graph.initializer[:]
    own.graph.input.extend(fed)
    own.graph.initializer.extend(constant)
    return own


def _border(model: onnx.ModelProto, seeds: set[str], gradients: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what the nodes behind the seeds read from in front of them: inputs, and what nodes compute."""
    graph = ir.from_proto(model).graph
    late: set[ir.Value] = {v for v in graph.inputs if v.name in seeds}
    read: dict[ir.Value, None] = {}
    for node in graph:
        operands = [v for v in (*node.inputs, *query.captured(node)) if v is not None]
        if late.intersection(operands):
            late.update(node.outputs)
            read.update(dict.fromkeys(v for v in operands if v not in late))
    read.update(dict.fromkeys(v for v in graph.outputs if v.name in gradients and v not in late))
    computed = [v for v in read if (node := v.producer()) is not None and node.inputs]
    fed = [v for v in read if v.is_graph_input()]
    return [str(v.name) for v in fed], [str(v.name) for v in computed]
