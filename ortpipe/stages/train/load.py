"""Build the epoch graph of a batch size, and load it into the engine that runs it."""

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph.core.apart import Weights
from ortpipe.graph.core.builder import Names, gc_paused, used_names
from ortpipe.graph.core.check import clean, proto_apart
from ortpipe.graph.core.types import IR_VERSION
from ortpipe.graph.forms.modes import is_random, set_seeds
from ortpipe.runtime import xla
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.epoch_graph import BATCHES, EpochGraph, for_batch_size, speed
from ortpipe.stages.train.losses import Compiled
from ortpipe.stages.train.step import TrainStep, build_step
from ortpipe.stages.train.training import Training


class Runs(Protocol):
    """An epoch graph, ready to run."""

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order."""


def runs_in_onnxruntime(runtime: RuntimeConfig | None) -> bool:
    """Return whether onnxruntime runs the epoch graph."""
    return runtime is None or runtime.engine == "onnxruntime"


def loader(training: Training, step: TrainStep) -> Callable[[int, int], Runs]:
    """Return a function that loads the epoch graph for an epoch's number and a batch size; it takes over the step.

    A graph with random draws (dropout) is reloaded for each epoch with that epoch's seeds, so that draws only depend on
    the config's seed and the epoch's number.
    """
    first = [build_epoch(step)]
    random = is_random(first[0].model)

    @functools.cache
    @gc_paused()
    def sized(size: int) -> tuple[onnx.ModelProto, Weights]:
        if not first:  # cheaper than a copy for each
            first.append(build_epoch(build_step(training.artifact, training.config)))
        epoch = first.pop()
        model = for_batch_size(epoch, size)
        speed().rewrite(epoch, training.runtime)
        clean(model)
        return proto_apart(model, deep=True)  # checked by derive, and again by the runtime

    if not runs_in_onnxruntime(training.runtime):
        return _compiling(training, sized, random=random)
    if not random:
        load = functools.cache(lambda size: _session(*sized(size), training))
        return lambda number, size: load(size)

    @functools.lru_cache(maxsize=2)  # for full batches and the partial one
    def load_seeded(number: int, size: int) -> Session:
        [first] = np.random.default_rng([training.config.seed, number, size]).integers(1, 2**24, 1)
        proto, weights = sized(size)
        model = ir.from_proto(proto)
        set_seeds(model, int(first))
        return _session(ir.to_proto(model), weights, training)

    return load_seeded


def _session(model: onnx.ModelProto, weights: Weights, training: Training) -> Session:
    planned = speed().prepare(model)
    return Session(model, training.runtime, weights=weights, planned=planned, flushes=True)


def _compiling(
    training: Training, sized: Callable[[int], tuple[onnx.ModelProto, Weights]], *, random: bool
) -> Callable[[int, int], Runs]:
    """Return a function that loads the epoch graph into XLA; its programs take seeds as an input."""
    runtime = training.runtime
    assert runtime is not None

    @functools.cache
    def load(size: int) -> xla.Program:
        def report(seconds: float) -> None:
            training.report(Compiled(size, seconds))

        return xla.Program(*sized(size), runtime, steps=BATCHES, report=report)

    if not random:
        return lambda number, size: load(size)

    @functools.lru_cache(maxsize=2)  # for full batches and the partial one
    def load_seeded(number: int, size: int) -> Runs:
        return xla.SeededRuns(load(size), (training.config.seed, number, size))

    return load_seeded


def build_epoch(step: TrainStep) -> EpochGraph:
    """Return the epoch graph of a step, which becomes the Scan's body and passes its input names on."""
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
    return EpochGraph(ir.Model(graph, ir_version=IR_VERSION), step.seed, step.gradients)
