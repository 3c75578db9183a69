"""The graphs of a bundle: an epoch, a step, predictions and the loss, with all parameters in one flat vector."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact
from ortpipe.errors import TrainError
from ortpipe.graph import Builder, Names, all_nodes, clean, proto_apart, put_together, to_inference, used_names
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.step import PARAMETER, TrainStep, build_step
from ortpipe.stages.train.training import rates
from ortpipe.stages.train.vector import shaped, split

CONSTANT = 20_000  # steps after which the scalars of an optimizer count as constant
IR_VERSION, OPSET = 9, 20  # the newest that onnxruntime 1.17 loads
STANDARD = ("", "ai.onnx.ml")  # domains that each build of onnxruntime has


@dataclass(frozen=True)
class BundleGraphs:
    """The graphs of a bundle, and the values that they start from.

    Attributes:
        models: `train` (an epoch: any number of steps in one call), `step`, `predict` and `validate`.
        state: the values that steps carry: `parameters` [P], slots of the optimizer [P] and running statistics.
        parameters: the shape of each parameter, in the order of the vector.
        rows: the inputs of a step that hold a batch, [N, …].
        scalars: the optimizer's numbers for each step, [steps]; the last one counts for all later steps.
        weights: the carried values that predict reads.
    """

    models: Mapping[str, onnx.ModelProto]
    state: Arrays
    parameters: Mapping[str, tuple[int, ...]]
    rows: tuple[str, ...]
    scalars: Arrays
    weights: tuple[str, ...]


def training_graphs(artifact: Artifact, config: TrainConfig, steps: int | None = None) -> BundleGraphs:
    """Return the graphs that train and use a gradient model.

    Args:
        artifact: a gradient model with its forward outputs.
        config: the optimizer and its settings; batches are not accumulated, and one process computes them.
        steps: the number of steps of the schedule; by default the first ones until its numbers are constant, at most
            20,000.

    Raises:
        TrainError: the optimizer needs all rows at once, or an operator is not a standard one.
    """
    config = dataclasses.replace(config, accumulate=1, parallel=None)
    if config.optimizer.solver == "lbfgs":
        rule, fix = "The optimizer of a bundle must work on batches.", "Choose another, such as adam or sgd."
        raise TrainError(rule, got="lbfgs", fix=fix)
    step, body = build_step(artifact, config, flat=True), build_step(artifact, config, flat=True)
    carried = {folder: name for (folder, _), name in step.variables.items()}
    weights = (carried[PARAMETER], *step.statistics)
    facts = artifact.facts
    epoch = build_epoch(body)
    models = {
        "train": epoch,
        "step": ir.Model(step.graph, ir_version=epoch.ir_version),
        "predict": _with_weights(artifact.ir_model(facts.outputs), step, weights),
        "validate": _with_weights(artifact.ir_model([str(facts.loss)]), step, weights),
    }
    return BundleGraphs(
        {name: _finished(model) for name, model in models.items()},
        step.pack(step.init(_first(artifact))),
        step.layout.shapes,
        step.batch,
        _scalars(step, config, steps),
        weights,
    )


def _first(artifact: Artifact) -> dict[str, np.ndarray]:
    """Return the values that training starts from; float16 parameters are trained in float32."""
    arrays = {name: artifact.initializers[name] for name in (*artifact.facts.gradients, *artifact.facts.statistics)}
    return {name: a.astype(np.float32) if a.dtype.itemsize == 2 else a for name, a in arrays.items()}


def _with_weights(model: ir.Model, step: TrainStep, weights: Sequence[str]) -> ir.Model:
    """Let a model read its parameters from the vector, and its running statistics, as inputs."""
    to_inference(model)
    graph, (vector_name, *_) = model.graph, weights
    op = Builder(graph, "parameters", before=graph[0], names=Names({*used_names(graph), vector_name}))
    shapes = step.layout.shapes
    sizes = [math.prod(shape) for shape in shapes.values()]
    vector = ir.val(vector_name, ir.DataType.from_numpy(step.dtype), [sum(sizes)])
    for part, (name, shape) in zip(split(op, vector, sizes), shapes.items(), strict=True):
        parameter = graph.initializers.pop(name, None)
        if parameter is not None:
            part = shaped(op.Reshape(part, op.const(np.array(shape, np.int64))), shape)
            part = op.cast(part, parameter) if parameter.dtype != vector.dtype else part
            ir.convenience.replace_all_uses_with(parameter, part, replace_graph_outputs=True)
    trained = {*shapes, *step.statistics}
    data = [value for value in graph.inputs if value.name not in trained]
    statistics = [v for name, v in list(graph.initializers.items()) if name in step.statistics]
    for value in statistics:
        graph.initializers.pop(str(value.name)).const_value = None
    graph.inputs[:] = [vector, *statistics, *data]
    return model


def _finished(model: ir.Model) -> onnx.ModelProto:
    """Return a model of standard operators."""
    clean(model)
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in [v for v in graph.initializers.values() if not v.uses() and not v.is_graph_output()]:
            del graph.initializers[str(value.name)]  # onnxruntime warns of each
    others = [node for node in model.graph.all_nodes() if node.domain not in STANDARD]
    if others:
        rule, fix = "A bundle must run in any onnxruntime.", "Choose derive=native and a file of standard operators."
        raise TrainError(rule, got=f"the operator {others[0].domain}.{others[0].op_type}", fix=fix)
    proto = put_together(*proto_apart(model, deep=True))
    newest = max(opset.version for opset in proto.opset_import if not opset.domain)
    if all(_is_same(node.op_type, newest) for node in all_nodes(proto.graph) if not node.domain):
        proto.ir_version = IR_VERSION
        for opset in proto.opset_import:
            opset.version = min(opset.version, OPSET) if not opset.domain else opset.version
    return proto


@functools.cache
def _is_same(operator: str, opset: int) -> bool:
    """Return whether an operator has the same inputs and attributes at `OPSET`; most only have more types later."""
    forms = [onnx.defs.get_schema(operator, min(version, opset), "") for version in (OPSET, opset)]
    return len({(len(form.inputs), *sorted(form.attributes)) for form in forms}) == 1


def _scalars(step: TrainStep, config: TrainConfig, steps: int | None) -> dict[str, np.ndarray]:
    """Return the optimizer's numbers for each step; those of a schedule by epochs are spread over the steps."""
    count = steps or CONSTANT
    numbers = np.arange(1, count + 1)
    epochs = -(-numbers * config.epochs // count)
    exact = rates(config, numbers, epochs, count)
    arrays = {name: scalar(exact, numbers).astype(step.dtype) for name, scalar in step.scalars.items()}
    changes = [np.flatnonzero(array != array[-1]) for array in arrays.values()]
    last = max((int(places[-1]) + 2 for places in changes if len(places)), default=1)
    return {name: array[: min(last, count)] for name, array in arrays.items()}
