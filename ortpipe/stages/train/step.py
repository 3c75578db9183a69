"""The train step as one graph: forward, loss, backward and update are a pure function of the parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.edit import keep_outputs
from ortpipe.stages.train.accumulate import accumulated
from ortpipe.stages.train.chain import HALVES, chain, loss_scale
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.layout import Arrays, Layout
from ortpipe.stages.train.links import AVERAGE, Inputs

PARAMETER = "parameter"  # the folder of what training gives, in its tensors; that of a slot is optimizer/<slot>
ITERATE = "optimizer/iterate"  # that of the parameters themselves, where training gives their averages


@dataclass(frozen=True)
class TrainStep:
    """(parameters, state, statistics, batch, scalars) → (parameters, state, statistics, loss).

    Attributes:
        graph: its inputs are what is `carried`, then what is `scanned`; its outputs what is carried, then the loss.
        layout: of the parameters and their state.
        variables: (folder, variable) → the name under which it is carried.
        statistics: the names of running statistics, which are carried too.
        batch: the names of the batch's inputs.
        scalars: the names of the links' scalars, each a function of the rates and numbers of steps.
        dtype: of scalars and losses.
        seed: the name of the initializer that the backward pass starts from.
        gradients: the names of the gradients.
    """

    graph: ir.Graph
    layout: Layout
    variables: Mapping[tuple[str, str], str]
    statistics: tuple[str, ...]
    batch: tuple[str, ...]
    scalars: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]
    dtype: np.dtype
    seed: str
    gradients: tuple[str, ...]

    @property
    def carried(self) -> tuple[str, ...]:
        """The names of what one step hands to the next."""
        return (*self.variables.values(), *self.statistics)

    @property
    def scanned(self) -> tuple[str, ...]:
        """The names of what every step has of its own."""
        return (*self.batch, *self.scalars)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of what is carried."""
        return tuple(dict.fromkeys(folder for folder, _ in self.variables))

    def init(self, arrays: Arrays) -> dict[str, Arrays]:
        """Return what training begins with, by folder: state is zero, but for parameters that are averaged."""
        zeros = {name: np.zeros_like(arrays[name]) for name in self.layout.shapes}
        return {folder: arrays if folder in (PARAMETER, ITERATE) else zeros for folder in self.folders}

    def pack(self, folders: Mapping[str, Arrays]) -> dict[str, np.ndarray]:
        """Return what is carried, by name, of arrays by folder and parameter; statistics lie beside the parameters."""
        packed = {folder: self.layout.pack(folders[folder]) for folder in self.folders}
        values = {name: packed[folder][variable] for (folder, variable), name in self.variables.items()}
        return values | {name: folders[PARAMETER][name] for name in self.statistics}

    def unpack(self, values: Arrays) -> dict[str, Arrays]:
        """Return arrays by folder and parameter; statistics lie beside the parameters."""
        packed: dict[str, dict[str, np.ndarray]] = {}
        for (folder, variable), name in self.variables.items():
            packed.setdefault(folder, {})[variable] = values[name]
        folders = {folder: self.layout.unpack(variables) for folder, variables in packed.items()}
        folders[PARAMETER] |= {name: values[name] for name in self.statistics}
        return dict(folders)

    def parameters(self, values: Arrays) -> Arrays:
        """Return what training gives, of carried values: parameters, or their averages, and statistics."""
        return self.unpack(values)[PARAMETER]


def input_types(model: ir.Model) -> dict[str, np.dtype]:
    """Return the type of every input, by name."""
    return {str(value.name): value.dtype.numpy() for value in model.graph.inputs if value.dtype is not None}


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return a parameter's shape, which is known."""
    assert value.shape is not None
    return value.shape.numpy()


def gradients_of(artifact: Artifact, config: TrainConfig) -> ir.Model:
    """Return the model of the loss, the gradients and the next running statistics of one step's batch, or batches."""
    facts = artifact.facts
    assert facts.loss is not None
    model = artifact.ir_model()
    keep_outputs(model, [facts.loss, *facts.gradients.values(), *facts.statistics.values()])
    return model if config.accumulate == 1 else accumulated(model, facts)


def build_step(artifact: Artifact, config: TrainConfig) -> TrainStep:
    """Join a gradient model and the chain that `config` says."""
    facts, graph = artifact.facts, gradients_of(artifact, config).graph
    names = Names(used_names(graph))
    op, front = Builder(graph, "update", names=names), Builder(graph, "update", before=graph[0], names=names)
    loss, seed = query.value(graph, str(facts.loss)), query.value(graph, str(facts.output_gradient))
    parameters = {name: query.value(graph, name) for name in facts.gradients}
    moved = {query.value(graph, name): query.value(graph, new) for name, new in facts.statistics.items()}
    batch = [i for i in graph.inputs if i not in {*parameters.values(), *moved, seed}]
    gradients = {name: query.value(graph, gradient) for name, gradient in facts.gradients.items()}
    assert loss.dtype is not None
    assert seed.dtype is not None
    half = loss.dtype in HALVES
    dtype = ir.DataType.FLOAT if half else loss.dtype
    links, layout = chain(config, {name: shape_of(value) for name, value in parameters.items()}, loss.dtype)
    per_link = [[op.input(name, dtype, []) for name in link.scalars] for link in links]
    per_step = [function for link in links for function in link.scalars.values()]
    scalars = dict(zip([v for values in per_link for v in values], per_step, strict=True))
    carried: dict[ir.Value, ir.Value] = {}
    variables: dict[tuple[str, str], ir.Value] = {}
    averaged = any(AVERAGE in link.slots for link in links)
    for variable, (theta, u) in layout.write(front, op, parameters, gradients).items():
        variables[ITERATE if averaged else PARAMETER, variable] = theta
        for link, its_scalars in zip(links, per_link, strict=True):
            state = [op.input(f"{variable}/{slot}", dtype, shape_of(theta)) for slot in link.slots]
            u, following = link.update(op, Inputs(theta, u, state, its_scalars))
            carried |= zip(state, following, strict=True)
            for slot, value in zip(link.slots, state, strict=True):
                variables[PARAMETER if slot == AVERAGE else f"optimizer/{slot}", variable] = value
        carried[theta] = op.Add(theta, u)
    carried = {value: carried[value] for value in variables.values()} | moved
    for name in (*facts.gradients, *facts.statistics):
        graph.initializers.pop(name)
    seed.const_value = ir.tensor(np.array(loss_scale(config, loss.dtype), seed.dtype.numpy()), name=seed.name)
    for old, new in carried.items():
        new.type, new.shape = old.type, old.shape
        op.rename(new, f"{old.name}/next")
    graph.inputs[:] = [*carried, *batch, *scalars]
    graph.outputs[:] = [*carried.values(), op.cast(loss, next(iter(scalars))) if half else loss]
    return TrainStep(
        graph,
        layout,
        variables={key: str(value.name) for key, value in variables.items()},
        statistics=tuple(facts.statistics),
        batch=tuple(str(value.name) for value in batch),
        scalars={str(value.name): function for value, function in scalars.items()},
        dtype=dtype.numpy(),
        seed=str(seed.name),
        gradients=tuple(facts.gradients.values()),
    )
