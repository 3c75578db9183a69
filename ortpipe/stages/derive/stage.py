"""derive: a loss model → a functional gradient model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Value
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from ortpipe.artifact import Artifact, Facts
from ortpipe.autodiff.kernels import forget_kernel_gradients
from ortpipe.autodiff.outputs import name_gradients
from ortpipe.data.rows import Data
from ortpipe.errors import DeriveError, nearest
from ortpipe.graph.choice.parameters import choose, sentence, some
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.garbage import gc_paused
from ortpipe.graph.core.types import is_scalar
from ortpipe.graph.forms.adapters import Adapter
from ortpipe.graph.forms.modes import statistics as running_statistics
from ortpipe.settings import typed
from ortpipe.stages.derive import lora
from ortpipe.stages.derive.checkpointing import recompute
from ortpipe.stages.derive.compare import compare
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.ort import Ort, differentiable, with_yield

VERSION = 17
CUT = "no gradient reaches it"
ALL_KEPT = "keeps all that the backward pass reads: computing some again is not estimated to take less memory"


@typed
@gc_paused()
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
    facts, model = artifact.facts, artifact.ir_model()
    forget_kernel_gradients(model.graph.all_nodes())
    graph, output_names = (
        model.graph,
        (config.output,) if isinstance(config.output, str) else config.output or (facts.loss,),
    )
    if output_names == (facts.loss,):
        _make_scalar(graph, facts.loss)
    outputs = [_differentiable(graph, name) for name in output_names]
    inputs = query.select(config.inputs, facts.inputs, DeriveError, "inputs")
    scalar = outputs[0] if len(outputs) == 1 and is_scalar(outputs[0]) else None
    total, seeds = _seeded_sum(Builder(graph, "derive"), outputs, fill=config.fill_gradient and scalar is None)
    statistics = {name: str(value.name) for name, value in running_statistics(graph, total).items()}
    parameters, untrained = _chosen(graph, total, facts, config, seeds.values())
    _check_frozen(config, [*parameters, *untrained], statistics)
    adapters, without = _adapted(graph, untrained, facts, config)
    parameters += [name for adapter in adapters.values() for name in (adapter.left, adapter.right)]
    compared = Artifact(_part(model, artifact), facts) if config.check and adapters else artifact
    if isinstance(config.engine, Ort) and config.engine.yield_op:
        if config.checkpointing:
            raise DeriveError(
                "A training agent keeps every value that its backward pass reads.",
                key="checkpointing",
                got="engine.yield_op=true",
                fix="Leave out {key}, or engine.yield_op.",
            )
        return _yielding(artifact, model, [str(output.name) for output in outputs], parameters, inputs)
    forward = facts.outputs if config.forward_outputs else ()
    loss = () if scalar is None else (str(scalar.name),)
    keep_outputs(model, list(dict.fromkeys((str(total.name), *loss, *forward, *statistics.values()))))
    values = {name: value.const_value for name, value in graph.initializers.items()}
    model, gradients = config.engine(model, str(total.name), parameters, inputs)
    parameters, cut = _reached(parameters, inputs, gradients, config)
    untrained |= dict.fromkeys(cut, CUT)
    reserved = (*loss, *forward, *statistics.values(), *untrained)
    names = name_gradients(model.graph, {name: gradients[name] for name in (*parameters, *inputs)}, reserved)
    by_name = query.values(model.graph)
    thrifty = True
    if config.checkpointing:
        ends = [by_name[name] for name in (str(total.name), *loss, *forward, *statistics.values())]
        read = [value for value in query.data_inputs(model.graph) if value.name not in seeds.values()]
        thrifty = recompute(model.graph, ends, [by_name[name] for name in names.values()], read, config.checkpointing)
    result_names = (*loss, *names.values(), *statistics.values(), *forward)
    model.graph.outputs[:] = [by_name[name] for name in dict.fromkeys(result_names)]
    if adapters:
        without |= {name: CUT for name, adapter in adapters.items() if adapter.right in cut}
        notes = [lora.sentence({n: t.size for n, t in values.items() if t is not None}, parameters, adapters, without)]
    else:
        notes = _notes(parameters, untrained, facts, config, cut)
    notes += [] if thrifty else [ALL_KEPT]
    seed = next(iter(seeds.values()), None)
    if scalar is not None and seed is not None:
        values[seed] = ir.tensor(1, dtype=scalar.dtype, name=seed)
    held_inputs = [*parameters, *statistics, *seeds.values()]
    _set_inputs(
        model.graph, (*facts.inputs, *facts.labels, facts.sample_weight), {n: values.get(n) for n in held_inputs}
    )
    RemoveUnusedOpsetsPass()(model)
    model.producer_name = "ortpipe"
    result = artifact.next(
        "derive",
        VERSION,
        model=model,
        loss=scalar.name if scalar is not None else None,
        output_gradient=seed if len(seeds) == 1 else None,
        parameters=tuple(parameters),
        gradients={name: names[name] for name in parameters},
        input_gradients={name: names[name] for name in inputs},
        statistics=statistics,
        outputs=tuple(forward),
        constants=tuple(untrained),
        adapters={name: adapter._asdict() for name, adapter in adapters.items()},
        notes=notes,
    )
    if config.check:
        compare(compared, result, [name for name in output_names if name is not None], list(seeds.values()), data)
    return result


def check(facts: Facts, config: DeriveConfig, *, data: Data | None = None) -> None:
    """Refuse a pattern that matches no initializer, or no input."""
    query.select(config.inputs, facts.inputs, DeriveError, "inputs")
    if config.output is None:  # another output may depend on others
        for key in ("parameters", "frozen"):
            query.select(getattr(config, key) or (), (*facts.parameters, *facts.constants), DeriveError, key)
        targets = config.adapters.targets if config.adapters is not None else None
        query.select(targets or (), (*facts.parameters, *facts.constants), DeriveError, "adapters.targets")


def _part(model: ir.Model, artifact: Artifact) -> ir.Model:
    """Return a copy of the part of a model that gives what an artifact's does."""
    copy = model.clone()
    keep_outputs(copy, [value.name for value in artifact.signature.graph.output])
    return copy


def _yielding(
    artifact: Artifact, model: ir.Model, outputs: Sequence[str], parameters: Sequence[str], inputs: Sequence[str]
) -> Artifact:
    """Return the training build's graph as it is; it has no facts about gradients, for no other stage can run it."""
    keep_outputs(model, outputs)
    differentiable(model, outputs, [*parameters, *inputs])
    model, _ = with_yield(model, parameters, inputs, ())
    facts: dict[str, Any] = {"loss": None, "outputs": (), "parameters": tuple(parameters)}
    return artifact.next("derive", VERSION, model=ir.to_proto(model), **facts)


def _make_scalar(graph: Graph, name: str | None) -> None:
    """Make a loss that has one element and dimensions a scalar of the same name."""
    loss = next((o for o in graph.outputs if o.name == name), None)
    if loss is None or loss.shape is None or not loss.shape or any(d != 1 for d in loss.shape):
        return
    op = Builder(graph, "derive")
    scalar = op.Reshape(loss, [])
    scalar.shape = ir.Shape([])
    graph.outputs[graph.outputs.index(loss)] = scalar
    op.rename(loss, f"{name}/one")
    scalar.name = name


def _seeded_sum(op: Builder, outputs: Sequence[Value], *, fill: bool = False) -> tuple[Value, dict[str, str]]:
    """Return Σ output · seed, a scalar, and each output's seed: a new input of its shape, `<output>_grad`.

    With `fill` the seeds are ones, and no inputs.
    """
    seeds, total = dict[str, str](), None
    for output in outputs:
        assert output.dtype is not None
        term = output
        if not fill:
            shape = [d if isinstance(d, int) else d.value for d in output.shape] if output.shape is not None else []
            seed = op.input(f"{output.name}_grad", output.dtype, shape)
            seed.shape = output.shape
            seeds[str(output.name)] = str(seed.name)
            term = op.Mul(output, seed)
            term.type, term.shape = output.type, output.shape
        if fill or output.shape is None or output.shape.rank():
            term = op.ReduceSum(term, keepdims=0)
        term.type, term.shape = output.type, ir.Shape([])
        if total is not None:
            term = op.Add(total, term if term.dtype == total.dtype else op.cast(term, total))
            term.type, term.shape = total.type, ir.Shape([])
        total = term
    assert total is not None
    return total, seeds


def _differentiable(graph: Graph, output: str | None) -> Value:
    """Return the loss, or the output that the config names."""
    values = query.values(graph)
    if output is None or output not in values:
        raise DeriveError(
            "derive differentiates the loss, or the output that {at}output names.",
            got=repr(output),
            fix="Run add_loss first, or " + nearest(output or "", [str(o.name) for o in graph.outputs]),
        )
    value = values[output]
    if value.dtype is None or value.dtype not in query.FLOATS:
        raise DeriveError(
            "Only float outputs have gradients.", got=f"{output!r} of type {value.dtype}", fix="Name another."
        )
    return value


def _chosen(
    graph: Graph, output: Value, facts: Facts, config: DeriveConfig, seeds: Collection[str]
) -> tuple[list[str], dict[str, str]]:
    """Return what is trained, and the other float initializers that the output depends on with the reason."""
    initializer_names = {str(name) for name in graph.initializers}
    candidates = [name for name in query.float_initializers(graph, output) if name not in seeds]
    if config.parameters is None and config.adapters is not None:
        chosen = []
    elif config.parameters is None:
        chosen = [name for name in candidates if name in facts.parameters]
    else:
        chosen = query.select(config.parameters, candidates, DeriveError, "parameters", initializer_names)
    frozen = set(query.select(config.frozen, candidates, DeriveError, "frozen", initializer_names))
    chosen = [name for name in chosen if name not in frozen]
    if not chosen and not config.inputs and config.adapters is None:
        why = choose(graph, output).untrained
        raise DeriveError(
            "At least one parameter must be trained.",
            got=sentence([], {name: why.get(name, "derive.frozen") for name in candidates}),
            fix=f"Name some in {{at}}parameters{', or shorten {at}frozen' if config.frozen else ''}.",
        )
    if config.output is None:
        _check_finite(graph, chosen)
    unnamed = "by default" if config.parameters is None else "not in derive.parameters"
    untrained = {n: "derive.frozen" if n in frozen else unnamed for n in candidates if n not in chosen}
    return chosen, untrained


def _check_frozen(config: DeriveConfig, names: Sequence[str], statistics: Collection[str]) -> None:
    """Refuse to freeze running statistics alone: they follow the batches, whatever is trained."""
    for pattern in config.frozen:
        if statistics and {*query.matches(pattern, names)} <= {*statistics}:
            raise DeriveError(
                "{at}frozen leaves parameters as they are; running statistics follow the batches all the same.",
                got=f"{pattern!r}, which matches running statistics alone",
                fix="Leave it out, or set training_mode=0 in the model's layer (eval() of a PyTorch layer).",
            )


def _adapted(
    graph: Graph, untrained: Mapping[str, str], facts: Facts, config: DeriveConfig
) -> tuple[dict[str, Adapter], dict[str, str]]:
    """Put the config's adapters into the graph; return them by weight, and the targets without one with the reason."""
    if config.adapters is None:
        return {}, {}
    candidates = [name for name, reason in untrained.items() if reason != "derive.frozen"]
    return config.adapters(graph, candidates, facts.parameters)


def _check_finite(graph: Graph, parameters: Sequence[str]) -> None:
    """Refuse to train what does not start from numbers: the first step could only give nan."""
    wrong = [name for name in parameters if not np.isfinite(query.array(graph.initializers[name])).all()]
    if wrong:
        raise DeriveError(
            "What is trained starts from finite numbers.",
            got=f"nan or infinite values in {some(wrong)}",
            fix="Leave them out with {at}frozen.",
        )


def _reached(
    parameters: Sequence[str], inputs: Sequence[str], gradients: Collection[str], config: DeriveConfig
) -> tuple[list[str], list[str]]:
    """Return the parameters that have a gradient, and those that none can reach; what the config names must have one.

    What is only rounded, compared or counted on its way to the loss does not move it.
    """
    cut = [name for name in (*parameters, *inputs) if name not in gradients]
    named = [name for name in cut if config.parameters is not None or name in inputs]
    if named or len(cut) == len(parameters) + len(inputs):
        raise DeriveError(
            "The loss must depend on everything that is trained.",
            got=f"no gradient for {', '.join(map(repr, named or cut))}: a node without a derivative cuts it off",
            fix=f"Leave it out of {{at}}{'inputs' if set(named) <= {*inputs} else 'parameters'}."
            if named
            else "Name another output in {at}output.",
        )
    return [name for name in parameters if name not in cut], cut


def _notes(
    parameters: Sequence[str], untrained: Mapping[str, str], facts: Facts, config: DeriveConfig, cut: Sequence[str]
) -> list[str]:
    """Return in words what is trained, where that is something else than convert said."""
    if config.parameters is None and not config.frozen and not cut:
        return []
    added = [name for name in parameters if name in facts.constants]
    also = f"; only because derive.parameters says so: {some(added)}" if added else ""
    return [sentence(parameters, untrained) + also]


def _set_inputs(graph: Graph, data: Sequence[str | None], tensors: Mapping[str, ir.TensorProtocol | None]) -> None:
    """Put the inputs in one order whatever the engine did: the data, then what is held, with its values."""
    by_name = query.values(graph)
    for name, tensor in tensors.items():
        if not by_name[name].is_initializer() and tensor is not None:
            by_name[name].const_value = tensor
            graph.register_initializer(by_name[name])
    read = [by_name[name] for name in data if name in by_name and by_name[name].is_graph_input()]
    graph.inputs[:] = [*read, *(by_name[name] for name in tensors)]
