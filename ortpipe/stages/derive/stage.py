"""derive: a loss model → a functional gradient model."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Value
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from ortpipe.artifact import Artifact, Facts
from ortpipe.autodiff import name_gradients
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, gc_paused
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.types import is_scalar
from ortpipe.settings import typed
from ortpipe.stages.derive.config import VERSION, DeriveConfig

if TYPE_CHECKING:  # for settings and models beyond the gradient of a scalar loss
    from ortpipe.graph.forms.modes import statistics as running_statistics
    from ortpipe.stages.derive.checkpointing import checkpoint
    from ortpipe.stages.derive.chosen import chosen_by_config, reject_infinite, sentence_of, without_cut
    from ortpipe.stages.derive.compare import compare, part_of
    from ortpipe.stages.derive.outputs import sum_of_outputs
else:
    later(__name__)

Tensors = Mapping[str, ir.TensorProtocol | None]
CUT = "no gradient reaches it"


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
    target = _target(model.graph, facts, config)
    choice = _chosen(model.graph, target, facts, config)
    loss_model = part_of(artifact, model) if config.check else None
    engine: Any = config.engine
    if getattr(engine, "yield_op", False):
        return artifact.next("derive", VERSION, **engine.yielding(model, target, choice, config.checkpointing))
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()} | target.ones
    model, choice, names = _differentiated(model, target, choice, config)
    notes = []
    if config.parameters is not None or config.frozen or choice.adapters or CUT in choice.untrained.values():
        notes.append(sentence_of(choice, tensors, facts))
    if config.checkpointing:
        notes += checkpoint(model.graph, target, names, config.checkpointing)
    _set_interface(model.graph, target, choice, facts, [*names.values()], tensors)
    RemoveUnusedOpsetsPass()(model)
    model.producer_name = "ortpipe"
    result = artifact.next("derive", VERSION, model=model, **_facts(target, choice, names), notes=notes)
    if loss_model is not None:
        compare(loss_model, result, target, data)
    return result


class Seeded(NamedTuple):
    """The differentiated value: the loss, or the sum of other outputs, multiplied by seeds."""

    total: Value  # a scalar
    outputs: tuple[str, ...]
    seeds: dict[str, str]  # output → the input that multiplies its gradients
    ones: dict[str, ir.TensorProtocol]  # the value of the seed of a scalar
    loss: list[str]  # the output, if it is the only one and a scalar
    statistics: dict[str, str]  # running statistic → its next value
    forward: list[str]  # the forward outputs


class Trained(NamedTuple):
    """The parameters and inputs with gradients."""

    parameters: list[str]
    inputs: list[str]
    untrained: dict[str, str]  # the other float initializers that the outputs depend on, with the reason
    adapters: Mapping[str, Any] = MappingProxyType({})  # by weight
    unadapted: Mapping[str, str] = MappingProxyType({})  # the targets without one, with the reason


def _target(graph: Graph, facts: Facts, config: DeriveConfig) -> Seeded:
    """Multiply the loss by its seed, a new input `<loss>_grad`."""
    scalar: ir.Value | None
    names = (config.output,) if isinstance(config.output, str) else config.output or (facts.loss,)
    loss = query.values(graph).get(str(names[0]))
    if len(names) == 1 and loss is not None and is_scalar(loss) and loss.dtype in query.FLOATS:
        op = Builder(graph, "derive")
        seed = op.input(f"{loss.name}_grad", loss.dtype, [])
        total, scalar, seeds = op.Mul(loss, seed), loss, {str(loss.name): str(seed.name)}
        total.type, total.shape = loss.type, ir.Shape([])
    else:
        total, scalar, seeds = sum_of_outputs(graph, facts, names, fill=config.fill_gradient)
    has_statistics = any(node.op_type == "BatchNormalization" for node in graph)
    statistics = {n: str(v.name) for n, v in running_statistics(graph, total).items()} if has_statistics else {}
    ones = {seed: ir.tensor(1, dtype=total.dtype, name=seed) for seed in seeds.values()} if scalar is not None else {}
    loss_names, forward = [] if scalar is None else [str(scalar.name)], facts.outputs if config.forward_outputs else ()
    return Seeded(total, tuple(map(str, names)), seeds, ones, loss_names, statistics, [*forward])


def _chosen(graph: Graph, target: Seeded, facts: Facts, config: DeriveConfig) -> Trained:
    """Choose the trained parameters, by default those of convert, and the inputs with gradients."""
    candidates = [n for n in query.float_initializers(graph, target.total) if n not in target.seeds.values()]
    parameters = [name for name in candidates if name in facts.parameters]
    named = config.parameters is not None or config.frozen or config.inputs or config.adapters is not None
    if named or not parameters:
        choice = chosen_by_config(graph, target, facts, config, candidates)
    else:
        choice = Trained(parameters, [], {name: "by default" for name in candidates if name not in parameters})
    starts = (query.array(graph.initializers[name]) for name in choice.parameters)
    if config.output is None and not all(np.isfinite(array).all() for array in starts):
        reject_infinite(graph, choice.parameters)
    return choice


def _differentiated(
    model: ir.Model, target: Seeded, choice: Trained, config: DeriveConfig
) -> tuple[ir.Model, Trained, dict[str, str]]:
    """Return the model with gradients, the parameters and inputs that have one, and their names."""
    others, total = (*target.loss, *target.forward, *target.statistics.values()), str(target.total.name)
    keep_outputs(model, list(dict.fromkeys((total, *others))))
    model, gradients = config.engine(model, total, choice.parameters, choice.inputs)
    if cut := [name for name in (*choice.parameters, *choice.inputs) if name not in gradients]:
        choice = without_cut(choice, cut, config)
    gradients = {name: gradients[name] for name in (*choice.parameters, *choice.inputs)}
    return model, choice, name_gradients(model.graph, gradients, (*others, *choice.untrained))


def _set_interface(
    graph: Graph, target: Seeded, choice: Trained, facts: Facts, gradients: Sequence[str], tensors: Tensors
) -> None:
    """Put inputs and outputs in one order, which engines change; give parameters and state their values."""
    by_name = query.values(graph)
    state = [by_name[name] for name in (*choice.parameters, *target.statistics, *target.seeds.values())]
    for value in state:
        if not value.is_initializer() and (tensor := tensors.get(str(value.name))) is not None:
            value.const_value = tensor
            graph.register_initializer(value)
    data = [by_name[name] for name in (*facts.inputs, *facts.labels, facts.sample_weight) if name in by_name]
    graph.inputs[:] = [*(value for value in data if value.is_graph_input()), *state]
    outputs = (*target.loss, *gradients, *target.statistics.values(), *target.forward)
    graph.outputs[:] = [by_name[name] for name in dict.fromkeys(outputs)]


def _facts(target: Seeded, choice: Trained, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts about the derived model."""
    return {
        "loss": next(iter(target.loss), None),
        "output_gradient": next(iter(target.seeds.values())) if len(target.seeds) == 1 else None,
        "parameters": tuple(choice.parameters),
        "gradients": {name: names[name] for name in choice.parameters},
        "input_gradients": {name: names[name] for name in choice.inputs},
        "statistics": target.statistics,
        "outputs": tuple(target.forward),
        "constants": tuple(choice.untrained),
        "adapters": {name: adapter._asdict() for name, adapter in choice.adapters.items()},
    }
