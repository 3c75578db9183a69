"""The train step as one graph: forward, loss, backward and update as a pure function of the parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortpipe import own
from ortpipe.artifact import Arrays, Artifact, Facts, under
from ortpipe.errors import TrainError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, gc_paused, used_names
from ortpipe.graph.core.query import HALVES
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.epoch_graph import speed
from ortpipe.stages.train.layout import Layout
from ortpipe.stages.train.links import AVERAGE, Inputs, Link, Scalar, average, clip, decay, scale

PARAMETER = "parameter"  # the prefix of trained values in train's tensors; slots have optimizer/<slot>
ITERATE = "optimizer/iterate"  # the prefix of the parameters themselves if training returns their averages
Shapes = Mapping[str, tuple[int, ...]]
BATCHES = "K"  # the first dimension of values that are read batch by batch


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
    seed: str  # the name of the initializer that starts the backward pass
    gradients: tuple[str, ...]  # the names of the variables' gradients

    @property
    def carried(self) -> tuple[str, ...]:
        """The names of values passed from one step to the next."""
        return (*self.variables.values(), *self.statistics)

    @property
    def scanned(self) -> tuple[str, ...]:
        """The names of values that differ between steps."""
        return (*self.batch, *self.scalars)

    @property
    def _folders(self) -> list[str]:
        return list(dict.fromkeys(folder for folder, _ in self.variables))

    def init(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return the initial tensors: state is zero, except for averaged parameters."""
        tensors = {f"{PARAMETER}/{name}": arrays[name] for name in self.statistics}
        for folder in self._folders:
            first = np.asarray if folder in (PARAMETER, ITERATE) else np.zeros_like
            tensors |= {f"{folder}/{name}": first(arrays[name]) for name in self.layout.shapes}
        return tensors

    def pack(self, tensors: Arrays) -> dict[str, np.ndarray]:
        """Return the carried values by name; raise TrainError for tensors of another optimizer."""
        for folder in self._folders:
            if missing := [name for name in self.layout.shapes if f"{folder}/{name}" not in tensors]:
                raise TrainError(
                    "Training must continue with the same optimizer.",
                    got=f"a start without {folder}/{missing[0]}",
                    fix="Choose the same {@train/optimizer}, or start from the beginning.",
                )
        packed = {folder: self.layout.pack(under(folder, tensors)) for folder in self._folders}
        values = {name: packed[folder][variable] for (folder, variable), name in self.variables.items()}
        return values | {name: tensors[f"{PARAMETER}/{name}"] for name in self.statistics}

    def unpack(self, values: Arrays) -> dict[str, np.ndarray]:
        """Return the tensors of carried values."""
        tensors = {f"{PARAMETER}/{name}": values[name] for name in self.statistics}
        for folder in self._folders:
            variables = {variable: values[name] for (of, variable), name in self.variables.items() if of == folder}
            tensors |= {f"{folder}/{name}": array for name, array in self.layout.unpack(variables).items()}
        return tensors

    def parameters(self, values: Arrays) -> dict[str, np.ndarray]:
        """Return the result of training from carried values: parameters or their averages, and statistics."""
        return under(PARAMETER, self.unpack(values))


def input_types(model: ir.Model) -> dict[str, np.dtype]:
    """Return the type of every input, by name."""
    return {str(value.name): value.dtype.numpy() for value in model.graph.inputs if value.dtype is not None}


def gradients_of(artifact: Artifact, config: TrainConfig) -> ir.Model:
    """Return the model of the loss, the gradients and the next running statistics for the batches of one step."""
    facts = artifact.facts
    assert facts.loss is not None
    model = artifact.ir_model([facts.loss, *facts.gradients.values(), *facts.statistics.values()])
    return model if config.accumulate == 1 else accumulated(model, facts)


@gc_paused()
def build_step(artifact: Artifact, config: TrainConfig) -> TrainStep:
    """Join a gradient model and the configured chain of links."""
    facts, graph = artifact.facts, gradients_of(artifact, config).graph
    names = Names(used_names(graph))
    op, front = Builder(graph, "update", names=names), Builder(graph, "update", before=graph[0], names=names)
    by_name = query.values(graph)
    unranked = query.dependents(graph, (), _splits_by_computed_sizes)  # onnxruntime infers no shapes behind those
    loss, seed = by_name[str(facts.loss)], by_name[str(facts.output_gradient)]
    parameters = {name: by_name[name] for name in facts.gradients}
    moved = {by_name[name]: by_name[new] for name, new in facts.statistics.items()}
    no_batch = {*parameters.values(), *moved, seed}
    batch = [i for i in graph.inputs if i not in no_batch]
    gradients = {name: by_name[new] for name, new in facts.gradients.items()}
    gradients |= {name: _ranked(op, g, parameters[name]) for name, g in gradients.items() if g in unranked}
    assert loss.dtype is not None
    assert seed.dtype is not None
    types = {loss.dtype, *(value.dtype for value in parameters.values() if value.dtype is not None)}
    [narrow] = sorted(types.intersection(HALVES))[:1] or [loss.dtype]
    dtype = ir.DataType.DOUBLE if ir.DataType.DOUBLE in types else ir.DataType.FLOAT
    arrays = {name: artifact.initializers[name] for name in parameters}
    apart = Layout.of(arrays, groups=speed().stacks(arrays))
    links, layout = _chain(config, apart, narrow, None if types == {dtype} else dtype)
    per_link = [{op.input(name, dtype, []): function for name, function in link.scalars.items()} for link in links]
    scalars = {value: function for inputs in per_link for value, function in inputs.items()}
    carried: dict[ir.Value, ir.Value] = {}
    variables: dict[tuple[str, str], ir.Value] = {}
    averaged = any(AVERAGE in link.slots for link in links)
    written = layout.write(front, op, parameters, gradients)
    for variable, (theta, u) in written.items():
        variables[ITERATE if averaged else PARAMETER, variable] = theta
        assert theta.shape is not None
        for link, inputs in zip(links, per_link, strict=True):
            state = {slot: op.input(f"{variable}/{slot}", dtype, theta.shape.numpy()) for slot in link.slots}
            with op.formulas(), own.blamed(type(config.optimizer), "optimizer", TrainError):
                u, following = link.update(op, Inputs(theta, u, [*state.values()], [*inputs]))
            carried |= zip(state.values(), following, strict=True)
            variables |= {(PARAMETER if s == AVERAGE else f"optimizer/{s}", variable): v for s, v in state.items()}
        carried[theta] = op.Add(theta, u)
    carried = {value: carried[value] for value in variables.values()} | moved
    for name in (*facts.gradients, *facts.statistics):
        graph.initializers.pop(name).const_value = None  # graph passes treat values with a const_value as constants
    seed.const_value = ir.tensor(np.array(_loss_scale(config, narrow), seed.dtype.numpy()), name=seed.name)
    for old, new in carried.items():
        new.type, new.shape = old.type, old.shape
        op.rename(new, f"{old.name}/next")
    graph.inputs[:] = [*carried, *batch, *scalars]
    graph.outputs[:] = [
        *carried.values(),
        op.cast(loss, next(iter(scalars))) if loss.dtype != dtype else loss,
    ]
    return TrainStep(
        graph,
        layout,
        variables={key: str(value.name) for key, value in variables.items()},
        statistics=tuple(facts.statistics),
        batch=tuple(str(value.name) for value in batch),
        scalars={str(value.name): function for value, function in scalars.items()},
        dtype=dtype.numpy(),
        seed=str(seed.name),
        gradients=tuple(str(gradient.name) for _, gradient in written.values()),
    )


def _splits_by_computed_sizes(node: ir.Node) -> bool:
    return node.op_type == "Split" and len(node.inputs) > 1 and query.constant(node.inputs[1]) is None


def _ranked(op: Builder, gradient: ir.Value, parameter: ir.Value) -> ir.Value:
    """Return a gradient with a known shape: a Scan rejects states of unknown shape, even if its body declares one."""
    assert parameter.shape is not None
    return op.Reshape(gradient, op.const(np.array(parameter.shape.numpy(), np.int64)))


def _chain(
    config: TrainConfig, apart: Layout, narrow: ir.DataType, vector: ir.DataType | None
) -> tuple[list[Link], Layout]:
    """Return the links of the optimizer and of train's own settings, and the layout of parameters.

    `apart` is the layout without a vector, `narrow` the narrowest type of loss and parameters, `vector` the type of a
    vector that carries parameters of other types.
    """
    shapes = apart.shapes
    with own.blamed(type(config.optimizer), "optimizer", TrainError):
        links = [*config.optimizer()]
    if config.clip != ClipConfig():
        links.insert(0, clip(config.clip.value, config.clip.norm))
    if (scaled := _loss_scale(config, narrow)) != 1:
        links.insert(0, scale(1 / scaled))
    if config.weight_decay:
        links.append(decay(_per_element(config.weight_decay, shapes, "weight_decay", 0.0)))
    if config.factors:
        links.append(scale(_per_element(config.factors, shapes, "factors", 1.0)))
    if config.average is not None:
        links.append(average(config.average))
    if vector is None and not all(link.linear for link in links):
        vector = narrow
    return links, apart if vector is None else replace(apart, vector=vector)


def _loss_scale(config: TrainConfig, dtype: ir.DataType) -> float:
    """Return the loss scale; float16 gradients underflow below 6e-8."""
    if dtype not in HALVES:
        return 1.0
    return config.loss_scale or (1024.0 if dtype == ir.DataType.FLOAT16 else 1.0)


def _per_element(values: float | Mapping[str, float], shapes: Shapes, key: str, default: float) -> float | np.ndarray:
    """Return one number for all elements of the flat vector, or an array with the last matching pattern's number.

    >>> _per_element({"*": 0.1, "bias": 0.5}, {"weight": (2, 1), "bias": (1,)}, "factors", 1.0)
    array([0.1, 0.1, 0.5])
    """
    if not isinstance(values, Mapping):
        return values
    numbers = dict.fromkeys(shapes, default)
    for pattern, number in values.items():
        numbers |= dict.fromkeys(query.select([pattern], list(shapes), TrainError, key), number)
    first, *different = {*numbers.values()}
    return first if not different else np.repeat([*numbers.values()], [math.prod(shape) for shape in shapes.values()])


def accumulated(inner: ir.Model, facts: Facts) -> ir.Model:
    """Return the gradient model for K batches [K, N, …]: a Scan that averages their losses and gradients.

    Its outputs are the loss, the gradients and the next running statistics, which are updated after each batch.
    Inputs and outputs keep their names.
    """
    body, names = inner.graph, Names(used_names(inner.graph))
    outer = ir.Graph([], [], nodes=[], opset_imports=dict(inner.opset_imports), name=f"{body.name}/batches")
    op, inside = Builder(outer, "batches", names=names), Builder(body, "batch", names=names)
    batch, moving = query.data_inputs(body), [query.value(body, name) for name in facts.statistics]
    loss, *derivatives = body.outputs
    gradients, following = derivatives[: len(facts.gradients)], derivatives[len(facts.gradients) :]
    outer_values: dict[str, ir.Value] = {}
    for name, value in list(body.initializers.items()):
        outer_values[name] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        outer.register_initializer(outer_values[name])
        outer.inputs.extend([outer_values[name]] if value.is_graph_input() else [])
        body.initializers.pop(name)
        if value not in moving:
            ir.convenience.replace_all_uses_with(value, outer_values[name])
    read = [ir.Value(name=v.name, type=v.type, shape=ir.Shape([BATCHES, *(v.shape or ())])) for v in batch]
    outer.inputs.extend(read)
    public = [(value, str(value.name)) for value in body.outputs]
    for value in (*moving, *batch, *body.outputs):
        inside.rename(value, f"{value.name}/of_batch")
    sums = [inside.placeholder(f"{name}/sum", g, g.shape) for name, g in zip(facts.gradients, gradients, strict=True)]
    totals = [inside.Add(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
    body.inputs[:] = [*sums, *moving, *batch]
    body.outputs[:] = [*totals, *following, loss]
    for value, like in zip(totals, gradients, strict=True):
        value.type, value.shape = like.type, like.shape
    zeros = [
        op.Expand(op.like(0, outer_values[n]), op.const(np.array(outer_values[n].shape, np.int64)))
        for n in facts.gradients
    ]
    start = [*zeros, *(outer_values[name] for name in facts.statistics), *read]
    *ends, losses = op.Scan(*start, outputs=len(body.outputs), body=body, num_scan_inputs=len(read))
    means = [op.Div(end, op.cast(op.Size(losses), g)) for end, g in zip(ends, gradients, strict=False)]
    outer.outputs[:] = [op.ReduceMean(losses, keepdims=0), *means, *ends[len(gradients) :]]
    for value, (like, name) in zip(outer.outputs, public, strict=True):
        value.type, value.shape, value.name = like.type, like.shape, name
    return ir.Model(outer, ir_version=inner.ir_version)
