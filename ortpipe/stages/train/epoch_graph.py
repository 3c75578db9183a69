"""An epoch as one graph, loaded once per batch size: a Scan over batches whose body is the train step."""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.doors import later
from ortpipe.graph.core.builder import Names, gc_paused, used_names
from ortpipe.graph.core.check import clean, proto_apart
from ortpipe.graph.core.operators import is_random
from ortpipe.graph.core.protos import Weights
from ortpipe.graph.core.types import IR_VERSION
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.speed import speed
from ortpipe.stages.train.step import TrainStep, build_step
from ortpipe.stages.train.training import Training

if TYPE_CHECKING:
    from ortpipe.stages.train.compiled import load_compiled
    from ortpipe.stages.train.random_draws import with_seeds
else:
    later(__name__)

BATCHES = "batches"  # the first dimension of every scanned input


def build_epoch(step: TrainStep) -> ir.Model:
    """Return Scan(carried; scanned) → (carried, losses): one run computes any number of steps.

    The step becomes the body and passes its input names on; scanned inputs have the shape [batches, …].
    """
    body = step.graph
    names, inputs = Names(used_names(body)), list[ir.Value]()
    for value in body.inputs:
        shape = [*([BATCHES] if value.name in step.scanned else []), *(value.shape or ())]
        inputs.append(ir.val(str(value.name), value.dtype, shape))
        value.name = names.fresh(f"{value.name}/of_step")
    node = ir.node("Scan", inputs, {"body": body, "num_scan_inputs": len(step.scanned)}, num_outputs=len(body.outputs))
    for output, inner in zip(node.outputs, body.outputs, strict=True):
        output.type, output.shape, output.name = inner.type, inner.shape, names.fresh(f"{inner.name}/end")
    losses = node.outputs[-1]
    losses.name, losses.shape = names.fresh("losses"), ir.Shape([BATCHES])
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports=dict(body.opset_imports), name="epoch")
    return ir.Model(graph, ir_version=IR_VERSION)


class Runs(Protocol):
    """An epoch graph, ready to run."""

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order."""


Load = Callable[[int, int], Runs]  # an epoch's number, a batch size


def runs_in_onnxruntime(runtime: RuntimeConfig | None) -> bool:
    """Return whether onnxruntime runs the epoch graph."""
    return runtime is None or runtime.engine == "onnxruntime"


def loader(training: Training, step: TrainStep) -> Load:
    """Return a function that loads the epoch graph for an epoch and a batch size; it takes over the step."""
    steps, random = [step], any(map(is_random, step.graph.all_nodes()))

    @functools.cache
    @gc_paused()
    def sized(size: int) -> tuple[onnx.ModelProto, Weights]:
        step = steps.pop() if steps else build_step(training.artifact, training.config)  # cheaper than a copy for each
        model = build_epoch(step)
        # Users run another graph than `build_epoch` writes: `ortpipe.fast`, which the spine lacks, rewrites it.
        speed().rewrite(model, size, step.seed, step.gradients, training.runtime)
        clean(model)
        return proto_apart(model, deep=True)  # checked by derive, and again by the runtime

    if not runs_in_onnxruntime(training.runtime):
        return load_compiled(training, sized, random=random)
    if random:
        return with_seeds(sized, training.config.seed, functools.partial(load_session, training.runtime))
    load = functools.cache(lambda size: load_session(training.runtime, *sized(size)))
    return lambda number, size: load(size)


def load_session(runtime: RuntimeConfig | None, model: onnx.ModelProto, weights: Weights) -> Session:
    """Return a session of a training graph."""
    return Session(model, runtime, weights=weights, **speed().prepare(model))
