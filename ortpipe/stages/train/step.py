"""The train step as one graph: forward, loss, backward and update are a pure function of the parameters."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.compose import extract
from ortpipe.stages.train.optimizers import Optimizer


def shape_of(value: ir.Value) -> list[int | str | None]:
    """Return a value's dimensions; symbolic ones by name."""
    return [d if isinstance(d, int) else d.value for d in value.shape] if value.shape is not None else []


@dataclass(frozen=True)
class Step:
    """(parameters, statistics, state, batch, rate) → (parameters, statistics, state, loss).

    Attributes:
        graph: inputs and outputs in the order of `carried`, then `scanned`; outputs are `carried`, then the loss.
        opsets: what its nodes need.
        carried: the names of parameters, running statistics and state, which one step hands to the next.
        scanned: the names of batch inputs and the rate, of which every step has its own.
        slots: (slot, parameter) → the name of that state.
    """

    graph: ir.Graph
    opsets: dict[str, int]
    carried: tuple[str, ...]
    scanned: tuple[str, ...]
    slots: dict[tuple[str, str], str]


def build_step(artifact: Artifact, optimizer: Optimizer) -> Step:
    """Join a gradient model and an optimizer."""
    facts = artifact.facts
    assert facts.loss is not None
    made = (*facts.gradients.values(), *facts.statistics.values())
    model = ir.from_proto(extract(artifact.model, [facts.loss, *made]))
    graph = model.graph
    known = {*facts.gradients, *facts.statistics, facts.output_gradient}
    batch = [i for i in graph.inputs if i.name not in known]
    names = Names(used_names(graph))
    op = Builder(graph, "update", names=names)
    dtype = query.value(graph, facts.loss).dtype
    assert dtype is not None
    rate = op.input("rate", dtype, [])
    _scale(
        Builder(graph, "update", before=graph[0], names=names),
        facts.output_gradient,
        rate if optimizer.scaled else None,
    )
    parameters: list[ir.Value] = []
    state: list[ir.Value] = []
    slot_names: dict[tuple[str, str], str] = {}
    next_parameters: list[ir.Value] = []
    next_state: list[ir.Value] = []
    for name, gradient in facts.gradients.items():
        parameter = query.value(graph, name)
        slots = [op.input(f"{name}/{s}", dtype, shape_of(parameter)) for s in optimizer.slots]
        slot_names |= {(s, name): str(v.name) for s, v in zip(optimizer.slots, slots, strict=True)}
        new, new_slots = optimizer(op, parameter, query.value(graph, gradient), slots, rate)
        parameters.append(parameter)
        state.extend(slots)
        for value, old in zip((new, *new_slots), (parameter, *slots), strict=True):
            value.type, value.shape = old.type, old.shape
            op.rename(value, f"{old.name}/next")
        next_parameters.append(new)
        next_state.extend(new_slots)
        graph.initializers.pop(name)
    for name, following in facts.statistics.items():
        statistic, new = query.value(graph, name), query.value(graph, following)
        parameters.append(statistic)
        next_parameters.append(new)
        graph.initializers.pop(name)
    graph.inputs[:] = [*parameters, *state, *batch, rate]
    graph.outputs[:] = [*next_parameters, *next_state, query.value(graph, facts.loss)]
    return Step(
        graph,
        dict(model.opset_imports),
        carried=tuple(str(v.name) for v in (*parameters, *state)),
        scanned=tuple(str(v.name) for v in (*batch, rate)),
        slots=slot_names,
    )


def _scale(op: Builder, seed: str | None, rate: ir.Value | None) -> None:
    """Let the backward pass start from −η where there is a rate, else from 1: its gradients come out scaled by it."""
    value = next(i for i in op.graph.inputs if i.name == seed)
    started = op.Neg(rate) if rate is not None else op.like(1, value)
    started.type, started.shape = value.type, value.shape
    if rate is not None:
        for node in [use.node for use in value.uses() if use.node.op_type == "Neg"]:
            ir.convenience.replace_all_uses_with(node.outputs[0], rate)  # −(−η)
    ir.convenience.replace_all_uses_with(value, started)
    op.graph.initializers.pop(str(seed))
