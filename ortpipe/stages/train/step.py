"""The train step as one graph: forward, loss, backward and update as a pure function of the parameters."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe import own
from ortpipe.artifact import Arrays, Artifact, Facts, in_folder
from ortpipe.doors import later
from ortpipe.errors import TrainError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, gc_paused, used_names
from ortpipe.graph.core.query import HALVES
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.layout import Layout, Shapes, Values
from ortpipe.stages.train.links import AVERAGE, Inputs, Link, Scalar
from ortpipe.stages.train.speed import speed

if TYPE_CHECKING:  # for settings beyond the optimizer
    from ortpipe.stages.train.accumulate import accumulated
    from ortpipe.stages.train.setting_links import links_of_settings, loss_scale
    from ortpipe.stages.train.sliced import in_parallel
    from ortpipe.stages.train.vector import with_known_shapes
else:
    later(__name__)

PARAMETER = "parameter"  # the prefix of trained values in train's tensors; slots have optimizer/<slot>
ITERATE = "optimizer/iterate"  # the prefix of the parameters themselves if training returns their averages


@dataclass(frozen=True)
class TrainStep:
    """(parameters, state, statistics, batch, scalars) → (parameters, state, statistics, loss).

    Carried values are known outside by the names of train's tensors: `parameter/w`, `optimizer/velocity/w`, …
    """

    graph: ir.Graph  # inputs: carried values, scanned values; outputs: carried values, the loss
    layout: Layout  # of the parameters and their state
    variables: Mapping[tuple[str, str], str]  # (folder, variable) → the name under which it is carried
    statistics: tuple[str, ...]  # the names of running statistics, which are carried too
    batch: tuple[str, ...]  # the names of the batch's inputs
    scalars: Mapping[str, Scalar]  # the links' scalars, by name
    dtype: np.dtype  # of scalars and losses
    seed: str  # the name of the initializer that starts the backward pass; empty if gradients are inputs
    gradients: tuple[str, ...]  # the names of the variables' gradients

    @functools.cached_property
    def carried(self) -> tuple[str, ...]:
        """The names of values passed from one step to the next."""
        return (*self.variables.values(), *self.statistics)

    @property
    def scanned(self) -> tuple[str, ...]:
        """The names of values that differ between steps."""
        return (*self.batch, *self.scalars)

    @property
    def folders(self) -> list[str]:
        """The folders of the tensors with parameters' shapes."""
        return list(dict.fromkeys(folder for folder, _ in self.variables))

    def init(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return the initial tensors: state is zero, except for averaged parameters."""
        tensors = {f"{PARAMETER}/{name}": arrays[name] for name in self.statistics}
        for folder in self.folders:
            first = np.asarray if folder in (PARAMETER, ITERATE) else np.zeros_like
            tensors |= {f"{folder}/{name}": first(arrays[name]) for name in self.layout.shapes}
        return tensors

    def pack(self, tensors: Arrays) -> dict[str, np.ndarray]:
        """Return the carried values by name."""
        packed = {folder: self.layout.pack(in_folder(folder, tensors)) for folder in self.folders}
        values = {name: packed[folder][variable] for (folder, variable), name in self.variables.items()}
        return values | {name: tensors[f"{PARAMETER}/{name}"] for name in self.statistics}

    def unpack(self, values: Arrays) -> dict[str, np.ndarray]:
        """Return the tensors of carried values."""
        tensors = {f"{PARAMETER}/{name}": values[name] for name in self.statistics}
        for folder in self.folders:
            variables = {variable: values[name] for (of, variable), name in self.variables.items() if of == folder}
            tensors |= {f"{folder}/{name}": array for name, array in self.layout.unpack(variables).items()}
        return tensors

    def weights(self, values: Arrays) -> dict[str, np.ndarray]:
        """Return the parameters that the next step starts from: not their averages."""
        return in_folder(ITERATE if ITERATE in self.folders else PARAMETER, self.unpack(values))

    def parameters(self, values: Arrays) -> dict[str, np.ndarray]:
        """Return the result of training from carried values: parameters or their averages, and statistics."""
        return in_folder(PARAMETER, self.unpack(values))


def gradients_of(artifact: Artifact, config: TrainConfig) -> ir.Model:
    """Return the model of the loss, the gradients and the next running statistics for the batches of one step."""
    facts = artifact.facts
    model = artifact.ir_model([str(facts.loss), *facts.gradients.values(), *facts.statistics.values()])
    if config.parallel is not None:
        values = query.values(model.graph)
        wide = types_of(values[str(facts.loss)], {name: values[name] for name in facts.gradients})[1]
        return in_parallel(model, facts, config.parallel, wide)
    return model if config.accumulate == 1 else accumulated(model, facts)


@gc_paused()
def build_step(artifact: Artifact, config: TrainConfig, *, flat: bool = False) -> TrainStep:
    """Join a gradient model and the configured chain of links; if `flat`, all parameters are one vector."""
    facts, graph = artifact.facts, gradients_of(artifact, config).graph
    names = Names(used_names(graph))
    op, by_name = Builder(graph, "update", names=names), query.values(graph)
    loss, seed = by_name[str(facts.loss)], by_name[str(facts.output_gradient)]
    parameters = {name: by_name[name] for name in facts.gradients}
    moved = {by_name[name]: by_name[new] for name, new in facts.statistics.items()}
    batch = [i for i in graph.inputs if i not in {*parameters.values(), *moved, seed}]
    arrays = {name: artifact.initializers[name] for name in parameters}
    narrow, wide, mixed = types_of(loss, parameters)
    layout = speed().layout(Layout({name: array.shape for name, array in arrays.items()}), arrays)
    links = _links(config, layout.shapes, narrow)
    if flat or mixed or not all(link.linear for link in links):
        layout = layout.as_vector(wide)
    written = layout.write(op, names, parameters, _gradients(op, facts, by_name))
    update = _write_update(op, config, links, written, wide)
    carried = {value: update.next_values[value] for value in update.variables.values()} | moved
    for name in (*facts.gradients, *facts.statistics):
        graph.initializers.pop(name).const_value = None  # graph passes treat values with a const_value as constants
    set_seed(seed, config, narrow)
    _set_ends(op, carried, [*batch, *update.scalars], loss, wide)
    return TrainStep(
        graph,
        layout,
        variables={key: str(value.name) for key, value in update.variables.items()},
        statistics=tuple(facts.statistics),
        batch=tuple(str(value.name) for value in batch),
        scalars={str(value.name): function for value, function in update.scalars.items()},
        dtype=wide.numpy(),
        seed=str(seed.name) if seed.uses() else "",
        gradients=tuple(str(gradient.name) for _, gradient in written.values()),
    )


def types_of(loss: ir.Value, parameters: Values) -> tuple[ir.DataType, ir.DataType, bool]:
    """Return the narrowest type of the loss and the parameters, that of updates, and whether any differs from it."""
    types = {value.dtype for value in (loss, *parameters.values()) if value.dtype is not None}
    wide = ir.DataType.DOUBLE if ir.DataType.DOUBLE in types else ir.DataType.FLOAT
    return min(types, key=lambda kind: (kind.itemsize, kind)), wide, types != {wide}


def _gradients(op: Builder, facts: Facts, by_name: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
    """Return the gradients by parameter, with known shapes."""
    gradients = {name: by_name[new] for name, new in facts.gradients.items()}
    splits = any(node.op_type == "Split" and len(node.inputs) > 1 for node in op.graph)
    return with_known_shapes(op, gradients, by_name) if splits else gradients


def _links(config: TrainConfig, shapes: Shapes, narrow: ir.DataType) -> list[Link]:
    """Return the links of the optimizer and of train's own settings."""
    with own.blamed(type(config.optimizer), "optimizer", TrainError):
        links = [*config.optimizer()]
    others = config.weight_decay or config.factors or config.average is not None or config.clip != ClipConfig()
    return links_of_settings(links, config, shapes, narrow) if others or narrow in HALVES else links


class _Update(NamedTuple):
    variables: dict[tuple[str, str], ir.Value]  # (folder, variable) → its value in this step
    next_values: dict[ir.Value, ir.Value]  # value in this step → value in the next one
    scalars: dict[ir.Value, Scalar]


def _write_update(
    op: Builder,
    config: TrainConfig,
    links: Sequence[Link],
    written: Mapping[str, tuple[ir.Value, ir.Value]],
    dtype: ir.DataType,
) -> _Update:
    """Write the chain of links for each variable, from its gradient to its next value."""
    per_link = [{op.input(name, dtype, []): function for name, function in link.scalars.items()} for link in links]
    update = _Update({}, {}, {value: function for inputs in per_link for value, function in inputs.items()})
    averaged = any(AVERAGE in link.slots for link in links)
    for variable, (theta, u) in written.items():
        update.variables[ITERATE if averaged else PARAMETER, variable] = theta
        assert theta.shape is not None
        for link, inputs in zip(links, per_link, strict=True):
            state = {slot: op.input(f"{variable}/{slot}", dtype, theta.shape.numpy()) for slot in link.slots}
            with op.formulas(), own.blamed(type(config.optimizer), "optimizer", TrainError):
                u, following = link.update(op, Inputs(theta, u, [*state.values()], [*inputs]))
            update.next_values.update(zip(state.values(), following, strict=True))
            for slot, value in state.items():
                update.variables[PARAMETER if slot == AVERAGE else f"optimizer/{slot}", variable] = value
        update.next_values[theta] = op.Add(theta, u)
    return update


def set_seed(seed: ir.Value, config: TrainConfig, narrow: ir.DataType) -> None:
    """Start the backward pass at the loss scale."""
    assert seed.dtype is not None
    scale = loss_scale(config, narrow) if narrow in HALVES else 1
    seed.const_value = ir.tensor(np.array(scale, seed.dtype.numpy()), name=seed.name)


def _set_ends(
    op: Builder, carried: Mapping[ir.Value, ir.Value], scanned: Sequence[ir.Value], loss: ir.Value, dtype: ir.DataType
) -> None:
    """Set the inputs and outputs of the step."""
    for old, new in carried.items():
        new.type, new.shape = old.type, old.shape
        op.rename(new, f"{old.name}/next")
    op.graph.inputs[:] = [*carried, *scanned]
    op.graph.outputs[:] = [*carried.values(), op.Cast(loss, to=dtype) if loss.dtype != dtype else loss]
