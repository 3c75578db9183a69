"""derive: a loss model → a functional gradient model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.rows import Data
from ortpipe.errors import DeriveError, nearest
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.check import finish
from ortpipe.graph.compose import extract, graft
from ortpipe.graph.modes import statistics as running_statistics
from ortpipe.graph.parameters import sentence, some
from ortpipe.stages.derive.compare import compare
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.ort import Ort, differentiable, with_yield
from ortpipe.stages.derive.seeds import seeded_sum

VERSION = 4


def derive(artifact: Artifact, config: DeriveConfig | None = None, *, data: Data | None = None) -> Artifact:
    """Return ∂loss/∂parameter, or of another output, as a graph that is a pure function of the parameters.

    The trained parameters are inputs, and their current values ride along as initializers of the same names, so
    the model also runs without them. So does the input `<loss>_grad` (1), by which every gradient is multiplied.
    Outputs: the loss (or other scalar output), one `<parameter>_grad` per trained parameter, on request
    `<input>_grad` of data inputs, and the forward outputs. A loss of one element, such as [1, 1], becomes a scalar.
    `data` is read by `config.check` alone.

    Raises:
        DeriveError: nothing to train, a pattern that matches nothing, an operator without a gradient; with
            `config.check` a gradient that is not the slope of the loss.
    """
    config = config or DeriveConfig()
    facts = artifact.facts
    wanted = (config.output,) if isinstance(config.output, str) else config.output or (facts.loss,)
    source = _with_scalar_loss(artifact.model, facts.loss) if wanted == (facts.loss,) else artifact.model
    differentiated = [_differentiated(source, name) for name in wanted]
    output = differentiated[0] if len(differentiated) == 1 and _is_scalar(differentiated[0]) else None
    loss_model, seeds = _seeded(source, differentiated, fill=config.fill_gradient and output is None)
    loss_model, statistics = _with_statistics(loss_model)
    parameters, left = _chosen(ir.from_proto(loss_model).graph, artifact, config, seeds)
    inputs = query.select(config.inputs, facts.inputs, DeriveError, "inputs")
    if isinstance(config.engine, Ort) and config.engine.yield_op:
        return _yielding(artifact, source, [str(o.name) for o in differentiated], parameters, inputs)
    built, gradients = config.engine(loss_model, loss_model.graph.output[0].name, parameters, inputs)
    for name in (*parameters, *inputs):
        if name not in gradients:
            raise DeriveError(
                "The loss must depend on everything that is trained.",
                got=f"no gradient for {name!r}: a node without a derivative cuts it off",
                fix="Leave it out with derive.frozen.",
            )
    outputs = list(facts.outputs) if config.forward_outputs else []
    kept = [str(output.name)] if output is not None else []
    taken = _names(source)
    named, names = _functional(built, loss_model, parameters, inputs, gradients, statistics, kept, taken)
    model = graft(named, source, outputs) if outputs else named
    model = _ordered(model, [*facts.inputs, facts.label, facts.sample_weight, *parameters, *statistics, *seeds])
    if output is not None:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((), _dtype(output).numpy()), seeds[0]))
    result = artifact.next(
        "derive",
        VERSION,
        model=model,
        loss=output.name if output is not None else None,
        output_gradient=seeds[0] if len(seeds) == 1 else None,
        parameters=tuple(parameters),
        gradients={p: names[p] for p in parameters},
        input_gradients={i: names[i] for i in inputs},
        statistics=statistics,
        outputs=tuple(outputs),
        constants=tuple(left),
        notes=_notes(parameters, left, facts, config),
    )
    if config.check:
        compare(artifact, result, [name for name in wanted if name is not None], seeds, data)
    return result


def check(facts: Facts, config: DeriveConfig, *, data: Data | None = None) -> None:
    """Refuse a pattern that matches no initializer, or no input."""
    query.select(config.inputs, facts.inputs, DeriveError, "inputs")
    if config.output is None:  # another output may depend on others
        for key in ("parameters", "frozen"):
            query.select(getattr(config, key) or (), (*facts.parameters, *facts.constants), DeriveError, key)


def _yielding(
    artifact: Artifact,
    source: onnx.ModelProto,
    outputs: Sequence[str],
    parameters: Sequence[str],
    inputs: Sequence[str],
) -> Artifact:
    """Return the training build's graph as it is; it has no facts about gradients, for no other stage can run it."""
    forward = extract(source, outputs)
    forward = differentiable(forward, outputs, [*parameters, *inputs])
    built, _ = with_yield(forward, parameters, inputs)
    return artifact.next("derive", VERSION, model=built, loss=None, outputs=(), parameters=tuple(parameters))


def _with_scalar_loss(model: onnx.ModelProto, name: str | None) -> onnx.ModelProto:
    """Return the model with its loss, if that has one element and dimensions, made a scalar of the same name."""
    own = ir.from_proto(model)
    graph = own.graph
    loss = next((o for o in graph.outputs if o.name == name), None)
    if loss is None or loss.shape is None or not loss.shape or any(d != 1 for d in loss.shape):
        return model
    op = Builder(graph, "derive")
    scalar = op.Reshape(loss, op.const(np.array([], np.int64)))
    scalar.type, scalar.shape = loss.type, ir.Shape([])
    graph.outputs[graph.outputs.index(loss)] = scalar
    op.rename(loss, f"{name}/one")
    scalar.name = name
    return finish(own)


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() == 0


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _seeded(model: onnx.ModelProto, outputs: Sequence[ir.Value], *, fill: bool) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model of one scalar, Σ output · seed, whose gradients are those of the outputs times the seeds.

    The seeds are new inputs, or ones that nobody needs to feed.
    """
    own = ir.from_proto(model)
    graph = own.graph
    op = Builder(graph, "derive")
    total, seeds = seeded_sum(op, [query.value(graph, str(output.name)) for output in outputs], fill=fill)
    graph.outputs[:] = [total]
    return extract(finish(own), [str(total.name)]), list(seeds.values())


def _differentiated(model: onnx.ModelProto, output: str | None) -> ir.Value:
    """Return the loss, or the output that the config names."""
    values = ir.convenience.create_value_mapping(ir.from_proto(model).graph, include_subgraphs=False)
    if output is None or output not in values:
        raise DeriveError(
            "derive differentiates the loss, or the output that derive.output names.",
            got=repr(output),
            fix="Run add_loss first, or " + nearest(output or "", [o.name for o in model.graph.output]),
        )
    value = values[output]
    if value.dtype is None or value.dtype not in query.FLOATS:
        raise DeriveError(
            "Only float outputs have gradients.", got=f"{output!r} of type {value.dtype}", fix="Name another."
        )
    return value


def _with_statistics(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the loss model with the next value of each running statistic as an output behind the loss."""
    own = ir.from_proto(model)
    found = running_statistics(own.graph)
    if not found:
        return model, {}
    own.graph.outputs.extend(found.values())
    return finish(own), {name: str(value.name) for name, value in found.items()}


def _chosen(
    graph: ir.Graph, artifact: Artifact, config: DeriveConfig, seeds: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return what is trained, and the other float initializers that the loss depends on with the reason."""
    facts, held = artifact.facts, {t.name for t in artifact.model.graph.initializer}
    candidates = [name for name in query.float_initializers(graph, graph.outputs[0]) if name not in seeds]
    if config.parameters is None:
        chosen = [name for name in candidates if name in facts.parameters]
    else:
        chosen = query.select(config.parameters, candidates, DeriveError, "parameters", held)
    frozen = set(query.select(config.frozen, candidates, DeriveError, "frozen", held))
    chosen = [name for name in chosen if name not in frozen]
    if not chosen and not config.inputs:
        raise DeriveError(
            "At least one parameter must be trained.",
            got=f"none of {', '.join(candidates) or 'no float initializers'}",
            fix=f"Name some in derive.parameters{', or shorten derive.frozen' if config.frozen else ''}.",
        )
    if config.output is None:
        _check_finite(graph, chosen)
    unnamed = "by default" if config.parameters is None else "not in derive.parameters"
    left = {n: "derive.frozen" if n in frozen else unnamed for n in candidates if n not in chosen}
    return chosen, left


def _check_finite(graph: ir.Graph, parameters: Sequence[str]) -> None:
    """Refuse to train what does not start from numbers: the first step could only give nan."""
    wrong = [name for name in parameters if not np.isfinite(query.array(graph.initializers[name])).all()]
    if wrong:
        raise DeriveError(
            "What is trained starts from finite numbers.",
            got=f"nan or infinite values in {some(wrong)}",
            fix="Leave out what is no weight with derive.frozen, or export the model with finite weights.",
        )


def _notes(parameters: Sequence[str], left: Mapping[str, str], facts: Facts, config: DeriveConfig) -> list[str]:
    """Return in words what is trained, where the config says something else than convert did."""
    if config.parameters is None and not config.frozen:
        return []
    added = [name for name in parameters if name in facts.constants]
    also = f"; only because derive.parameters says so: {some(added)}" if added else ""
    return [sentence(parameters, left) + also]


def _functional(
    model: onnx.ModelProto,
    loss_model: onnx.ModelProto,
    parameters: Sequence[str],
    inputs: Sequence[str],
    gradients: Mapping[str, str],
    statistics: Mapping[str, str],
    kept: Sequence[str],
    taken: set[str],
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Make parameters and running statistics inputs, and name the outputs <parameter>_grad, <input>_grad.

    In front of them come the outputs that are `kept` (the loss), behind them the statistics' next values.
    What the engine added makes way for the names that are `taken` in the whole model.
    """
    own = ir.from_proto(model)
    graph = own.graph
    values = ir.from_proto(loss_model).graph.initializers
    by_name = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    names = Names((used_names(graph) - set(gradients.values())) | taken)
    for name in sorted((taken & by_name.keys()) - _names(loss_model)):
        by_name[name].name = names.fresh(name)
    outputs, renamed = [by_name[name] for name in kept], {}
    for name in (*parameters, *inputs):
        value = by_name[gradients[name]]
        if value in outputs or value.is_graph_input():  # two parameters share a gradient: each output has its own name
            node = ir.node("Identity", [value])
            graph.append(node)
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            value = node.outputs[0]
        value.shape = by_name[name].shape
        outputs.append(value)
        renamed[name] = value
    for name, value in renamed.items():
        value.name = names.fresh(f"{name}_grad")
    graph.outputs[:] = [*outputs, *(by_name[made] for made in statistics.values())]
    for name in (*parameters, *statistics):
        parameter = by_name[name]
        if not parameter.is_graph_input():
            graph.inputs.append(parameter)
        if not parameter.is_initializer():
            parameter.const_value = values[name].const_value
            graph.register_initializer(parameter)
    RemoveUnusedOpsetsPass()(own)
    return finish(own), {name: str(value.name) for name, value in renamed.items()}


def _names(model: onnx.ModelProto) -> set[str]:
    return used_names(ir.from_proto(model).graph)


def _ordered(model: onnx.ModelProto, wanted: Sequence[str | None]) -> onnx.ModelProto:
    """Put the inputs in one order whatever the engine did."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    by_name = {i.name: i for i in model.graph.input}
    del own.graph.input[:]
    own.graph.input.extend(by_name[name] for name in wanted if name in by_name)
    own.producer_name = "ortpipe"
    return own
