"""The train step as one graph: forward, loss, backward and update are a pure function of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.compose import extract
from ortpipe.stages.train.accumulate import accumulated
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.update import HALVES, ITERATE, flat, is_plain, one_by_one, scalars_of, scale_of

Arrays = Mapping[str, np.ndarray]  # by parameter or running statistic
State = Mapping[tuple[str, str], np.ndarray]  # by slot and parameter


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
        flat: the carried flat vector of what training gives; None if each parameter is carried by itself.
    """

    graph: ir.Graph
    opsets: dict[str, int]
    carried: tuple[str, ...]
    scanned: tuple[str, ...]
    scalars: tuple[str, ...]
    slots: dict[tuple[str, str], str]
    shapes: dict[str, tuple[int, ...]]
    flat: str | None

    def at_rest(self, parameters: Arrays) -> State:
        """Return the state that training begins with: zeros, and the parameters themselves where they are averaged."""
        return {(s, n): parameters[n] if s == ITERATE else np.zeros_like(parameters[n]) for s, n in self.slots}

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
        parts = {name: cut(values[name], self.shapes) for name in holders}
        state = {(slot, name): parts[held][name] for (slot, name), held in self.slots.items()}
        return {**parts[self.flat], **arrays}, state


def cut(flat: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the arrays that lie one behind the other in a flat vector."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = zip(shapes.items(), np.split(flat, ends[:-1]), strict=True)
    return {name: part.reshape(shape) for (name, shape), part in parts}


def gradients_of(artifact: Artifact, config: TrainConfig) -> onnx.ModelProto:
    """Return the model of the loss, the gradients and the next running statistics of one step's batch, or batches."""
    facts = artifact.facts
    assert facts.loss is not None
    model = extract(artifact.model, [facts.loss, *facts.gradients.values(), *facts.statistics.values()])
    return model if config.accumulate == 1 else accumulated(model, facts)


def build_step(artifact: Artifact, config: TrainConfig) -> Step:
    """Join a gradient model and an optimizer, with the parts of `config` around it."""
    facts = artifact.facts
    assert facts.loss is not None
    model = ir.from_proto(gradients_of(artifact, config))
    graph = model.graph
    known = {*facts.gradients, *facts.statistics, facts.output_gradient}
    batch = [i for i in graph.inputs if i.name not in known]
    names = Names(used_names(graph))
    front, op = Builder(graph, "update", before=graph[0], names=names), Builder(graph, "update", names=names)
    loss = query.value(graph, facts.loss)
    assert loss.dtype is not None
    half, scale = loss.dtype in HALVES, scale_of(config, loss.dtype)
    scalars = [op.input(name, ir.DataType.FLOAT if half else loss.dtype, []) for name in scalars_of(config)]
    plain = is_plain(config, loss.dtype)
    parameters = {name: query.value(graph, name) for name in facts.gradients}
    shapes = {name: tuple(value.shape.numpy()) for name, value in parameters.items() if value.shape is not None}
    gradients = {name: query.value(graph, gradient) for name, gradient in facts.gradients.items()}
    _start(front, facts.output_gradient, scalars[0] if plain else scale)
    if plain:
        carried, slots = one_by_one(op, config, parameters, gradients, scalars)
    else:
        carried, slots = flat(front, op, config, parameters, gradients, scalars, scale)
    held = None if plain else str(next(iter(carried)).name)
    carried |= {query.value(graph, name): query.value(graph, new) for name, new in facts.statistics.items()}
    for name in (*facts.gradients, *facts.statistics):
        graph.initializers.pop(name)
    for old, new in carried.items():
        new.type, new.shape = old.type, old.shape
        op.rename(new, f"{old.name}/next")
    graph.inputs[:] = [*carried, *batch, *scalars]
    graph.outputs[:] = [*carried.values(), op.cast(loss, scalars[0]) if half else loss]
    scanned = tuple(str(v.name) for v in (*batch, *scalars))
    return Step(
        graph,
        opsets=dict(model.opset_imports),
        carried=tuple(str(v.name) for v in carried),
        scanned=scanned,
        scalars=scanned[len(batch) :],
        slots={key: str(value.name) for key, value in slots.items()},
        shapes=shapes,
        flat=held,
    )


def _start(op: Builder, seed: str | None, rate: ir.Value | float) -> None:
    """Let the backward pass start from −η where that is given, else from a number: its gradients come out scaled so."""
    value = next(i for i in op.graph.inputs if i.name == seed)
    started = op.like(rate, value) if isinstance(rate, float) else op.Neg(rate)
    started.type, started.shape = value.type, value.shape
    if not isinstance(rate, float):
        for node in [use.node for use in value.uses() if use.node.op_type == "Neg"]:
            ir.convenience.replace_all_uses_with(node.outputs[0], rate)  # −(−η)
    ir.convenience.replace_all_uses_with(value, started)
    op.graph.initializers.pop(str(seed))
