"""The train step as one graph: forward, loss, backward and update are a pure function of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.compose import extract
from ortpipe.stages.train.optimizer import Optimizer

Arrays = Mapping[str, np.ndarray]  # by parameter or running statistic
State = Mapping[tuple[str, str], np.ndarray]  # by slot and parameter
Values = Mapping[str, ir.Value]
Update = tuple[dict[ir.Value, ir.Value], dict[tuple[str, str], ir.Value]]


def shape_of(value: ir.Value) -> list[int | str | None]:
    """Return a value's dimensions; symbolic ones by name."""
    return [d if isinstance(d, int) else d.value for d in value.shape] if value.shape is not None else []


@dataclass(frozen=True)
class Step:
    """(parameters, statistics, state, batch, scalars) → (parameters, statistics, state, loss).

    Attributes:
        graph: inputs and outputs in the order of `carried`, then `scanned`; outputs are `carried`, then the loss.
        opsets: what its nodes need.
        carried: the names of parameters, running statistics and state, which one step hands to the next.
        scanned: the names of what every step has of its own: batch inputs, then the optimizer's scalars.
        scalars: the last of them.
        slots: (slot, parameter) → the carried value that holds that state.
        shapes: of the parameters, in the order in which they lie in flat vectors.
        flat: the carried flat vector of all parameters; None if each parameter is carried by itself.
    """

    graph: ir.Graph
    opsets: dict[str, int]
    carried: tuple[str, ...]
    scanned: tuple[str, ...]
    scalars: tuple[str, ...]
    slots: dict[tuple[str, str], str]
    shapes: dict[str, tuple[int, ...]]
    flat: str | None

    def pack(self, arrays: Arrays, state: State) -> dict[str, np.ndarray]:
        """Return what is carried, from parameters and statistics by name, and the state by slot and parameter."""
        if self.flat is None:
            return {**arrays, **{name: state[key] for key, name in self.slots.items()}}
        parts: dict[str, list[np.ndarray]] = {self.flat: [arrays[name].ravel() for name in self.shapes]}
        for key, name in self.slots.items():
            parts.setdefault(name, []).append(state[key].ravel())
        own = {name: array for name, array in arrays.items() if name not in self.shapes}
        return own | {name: np.concatenate(part) for name, part in parts.items()}

    def unpack(self, values: Arrays) -> tuple[Arrays, State]:
        """Return parameters and statistics by name, and the state by slot and parameter."""
        if self.flat is None:
            state = {key: values[name] for key, name in self.slots.items()}
            return {name: array for name, array in values.items() if name not in self.slots.values()}, state
        holders = {*self.slots.values(), self.flat}
        arrays = {name: array for name, array in values.items() if name not in holders}
        parts = {name: self._split(values[name]) for name in holders}
        state = {(slot, name): parts[held][name] for (slot, name), held in self.slots.items()}
        return {**parts[self.flat], **arrays}, state

    def _split(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = np.split(flat, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


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
    front, op = Builder(graph, "update", before=graph[0], names=names), Builder(graph, "update", names=names)
    loss = query.value(graph, facts.loss)
    assert loss.dtype is not None
    scalars = [op.input(name, loss.dtype, []) for name in optimizer.scalars]
    _scale(front, facts.output_gradient, scalars[0] if optimizer.scaled else None)
    parameters = {name: query.value(graph, name) for name in facts.gradients}
    shapes = {name: tuple(value.shape.numpy()) for name, value in parameters.items() if value.shape is not None}
    gradients = {name: query.value(graph, gradient) for name, gradient in facts.gradients.items()}
    if optimizer.scaled:
        carried, slots = _one_by_one(op, optimizer, parameters, gradients, scalars)
    else:
        carried, slots = _flat(front, op, optimizer, parameters, gradients, scalars)
    flat = None if optimizer.scaled else str(next(iter(carried)).name)
    carried |= {query.value(graph, name): query.value(graph, new) for name, new in facts.statistics.items()}
    for name in (*facts.gradients, *facts.statistics):
        graph.initializers.pop(name)
    for old, new in carried.items():
        new.type, new.shape = old.type, old.shape
        op.rename(new, f"{old.name}/next")
    graph.inputs[:] = [*carried, *batch, *scalars]
    graph.outputs[:] = [*carried.values(), loss]
    scanned = tuple(str(v.name) for v in (*batch, *scalars))
    return Step(
        graph,
        opsets=dict(model.opset_imports),
        carried=tuple(str(v.name) for v in carried),
        scanned=scanned,
        scalars=scanned[len(batch) :],
        slots={key: str(value.name) for key, value in slots.items()},
        shapes=shapes,
        flat=flat,
    )


def _one_by_one(
    op: Builder, optimizer: Optimizer, parameters: Values, gradients: Values, scalars: Sequence[ir.Value]
) -> Update:
    """Update each parameter with a state of its own: what each carried value becomes, and which holds which state."""
    moved: dict[ir.Value, ir.Value] = {}
    state: dict[ir.Value, ir.Value] = {}
    holders: dict[tuple[str, str], ir.Value] = {}
    for name, parameter in parameters.items():
        assert parameter.dtype is not None
        slots = [op.input(f"{name}/{s}", parameter.dtype, shape_of(parameter)) for s in optimizer.slots]
        moved[parameter], new = optimizer(op, parameter, gradients[name], slots, *scalars)
        state |= dict(zip(slots, new, strict=True))
        holders |= {(s, name): value for s, value in zip(optimizer.slots, slots, strict=True)}
    return moved | state, holders


def _flat(
    front: Builder,
    op: Builder,
    optimizer: Optimizer,
    parameters: Values,
    gradients: Values,
    scalars: Sequence[ir.Value],
) -> Update:
    """Update all parameters as one vector, which the front of the step cuts up: a node costs more than a small copy."""
    shapes = [tuple(p.shape.numpy()) if p.shape is not None else () for p in parameters.values()]
    sizes = [math.prod(shape) for shape in shapes]
    dtype = next(iter(parameters.values())).dtype
    assert dtype is not None
    whole, *slots = (op.input(name, dtype, [sum(sizes)]) for name in ("parameters", *optimizer.slots))
    parts = [whole]
    if len(sizes) > 1:
        parts = front.Split(whole, front.const(np.array(sizes, np.int64)), outputs=len(sizes), axis=0)
    for part, shape, parameter in zip(parts, shapes, parameters.values(), strict=True):
        shaped = front.Reshape(part, front.const(np.array(shape, np.int64))) if len(shape) != 1 else part
        shaped.type, shaped.shape = parameter.type, parameter.shape
        ir.convenience.replace_all_uses_with(parameter, shaped)
    line = op.const(np.array([-1], np.int64))
    flat = [g if len(s) == 1 else op.Reshape(g, line) for g, s in zip(gradients.values(), shapes, strict=True)]
    joined = op.Concat(*flat, axis=0) if len(flat) > 1 else flat[0]
    joined.type, joined.shape = whole.type, whole.shape
    new, state = optimizer(op, whole, joined, slots, *scalars)
    holders = {(s, name): value for s, value in zip(optimizer.slots, slots, strict=True) for name in parameters}
    return {whole: new, **dict(zip(slots, state, strict=True))}, holders


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
